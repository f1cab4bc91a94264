package pve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// sent records the parameters of the last change and answers with then.
func sent(params *map[string]string, then route) route {
	return func(w http.ResponseWriter, r *http.Request) {
		*params = nil
		if err := json.NewDecoder(r.Body).Decode(params); err != nil {
			raw("400 "+err.Error(), "")(w, r)
			return
		}
		then(w, r)
	}
}

type sentChange struct {
	do      func(*testing.T, *Client) error
	request string
	params  map[string]string
	task    bool
}

func sentChanges() map[string]sentChange {
	vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Digest: "abc"}
	const config = "/nodes/pve1/qemu/101/config"
	return map[string]sentChange{
		"create": {
			func(t *testing.T, c *Client) error {
				return c.CreateVM(t.Context(), "pve1", 101, map[string]string{"name": "wk1", "scsi0": "fast:10"})
			},
			"POST /nodes/pve1/qemu",
			map[string]string{"vmid": "101", "name": "wk1", "scsi0": "fast:10"},
			true,
		},
		"set": {
			func(t *testing.T, c *Client) error {
				return c.SetConfig(t.Context(), vm, map[string]string{"onboot": "0", "boot": "order=scsi0"}, []string{"tags", "description"})
			},
			"PUT " + config,
			map[string]string{"onboot": "0", "boot": "order=scsi0", "delete": "tags,description", "digest": "abc"},
			false,
		},
		"set a drive": {
			func(t *testing.T, c *Client) error {
				return c.SetConfig(t.Context(), vm, map[string]string{"ide2": "none,media=cdrom"}, nil)
			},
			"POST " + config,
			map[string]string{"ide2": "none,media=cdrom", "digest": "abc"},
			true,
		},
		"detach a drive": {
			func(t *testing.T, c *Client) error { return c.SetConfig(t.Context(), vm, nil, []string{"scsi1"}) },
			"POST " + config,
			map[string]string{"delete": "scsi1", "digest": "abc"},
			true,
		},
		"the controller is no drive": {
			func(t *testing.T, c *Client) error {
				return c.SetConfig(t.Context(), vm, map[string]string{"scsihw": "virtio-scsi-single"}, nil)
			},
			"PUT " + config,
			map[string]string{"scsihw": "virtio-scsi-single", "digest": "abc"},
			false,
		},
		"move a disk": {
			func(t *testing.T, c *Client) error { return c.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi4") },
			"POST /nodes/pve1/qemu/101/move_disk",
			map[string]string{"disk": "scsi1", "target-vmid": "9090", "target-disk": "scsi4", "digest": "abc"},
			true,
		},
	}
}

func TestChangesAreSentAsProxmoxTakesThem(t *testing.T) {
	onEachNode(t, sentChanges(), func(t *testing.T, pve1 *fake, c *Client, tc sentChange) {
		answer := data("null")
		if tc.task {
			answer = data(`"` + testUPID + `"`)
		}
		var params map[string]string
		pve1.On(tc.request, sent(&params, answer))
		pve1.On(statusPath, running, stopped("OK"))
		must.Do(t, tc.do(t, c))
		must.Equal(t, "parameters", tc.params, params)
		want := []string{tc.request}
		if tc.task {
			want = append(want, statusPath, statusPath)
		}
		must.Equal(t, "requests", want, pve1.Requests())
	})
}

func TestDeleteSendsNoParameters(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("DELETE /nodes/pve1/qemu/101", func(w http.ResponseWriter, r *http.Request) {
			must.Equal(t, "length of the body", int64(0), r.ContentLength)
			data(`"`+testUPID+`"`)(w, r)
		})
		pve1.On(statusPath, stopped("OK"))
		must.Do(t, c.DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"}))
		must.Equal(t, "requests", []string{"DELETE /nodes/pve1/qemu/101", statusPath}, pve1.Requests())
	})
}

func TestNothingIsSent(t *testing.T) {
	undigested := cluster.VM{ID: 101, Name: "wk1", Host: "pve1"}
	type row struct {
		do   func(*testing.T, *Client) error
		want string
	}
	onEachNode(t, map[string]row{
		"empty change": {func(t *testing.T, c *Client) error { return c.SetConfig(t.Context(), undigested, nil, nil) }, "<nil>"},
		"set without a digest": {
			func(t *testing.T, c *Client) error {
				return c.SetConfig(t.Context(), undigested, map[string]string{"onboot": "0"}, nil)
			},
			`VM 101 "wk1" on pve1 was read without a digest, so a change could overwrite someone else's`,
		},
		"move without a digest": {
			func(t *testing.T, c *Client) error {
				return c.MoveDisk(t.Context(), undigested, "scsi1", 9090, "scsi1")
			},
			`VM 101 "wk1" on pve1 was read without a digest, so a change could overwrite someone else's`,
		},
		"create and start": {
			func(t *testing.T, c *Client) error {
				return c.CreateVM(t.Context(), "pve1", 101, map[string]string{"start": "1"})
			},
			`create VM 101: "start" is not a configuration key`,
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		must.Equal(t, "error", tc.want, fmt.Sprint(tc.do(t, c)))
		must.Equal(t, "requests", []string(nil), pve1.Requests())
	})
}

// TestRefusedChangeLeavesNothingPending, unless it was pending before, or cannot be taken back.
func TestRefusedChangeLeavesNothingPending(t *testing.T) {
	const config = "/nodes/pve1/qemu/101/config"
	set := func(t *testing.T, c *Client) error {
		vm := cluster.VM{ID: 101, Host: "pve1", Running: true, Digest: "before", Pending: []string{"cores", "memory"}}
		return c.SetConfig(t.Context(), vm, map[string]string{"cores": "4", "net0": "y"}, []string{"scsi1"})
	}
	free := func(t *testing.T, c *Client) error { return c.FreeDisk(t.Context(), disks101, "scsi1") }
	type row struct {
		do      func(*testing.T, *Client) error
		answer  route
		pending route
		revert  route
		want    string // error
		sent    map[string]string
	}
	onEachNode(t, map[string]row{
		"still busy": {
			set, raw("400 Parameter verification failed.", `{"errors":{"scsi1":"hotplug problem - error on hot-unplugging device 'scsi1' - still busy in guest?\n"},"data":null}`),
			data(`[{"key":"memory","pending":4096},{"key":"cores","pending":4},{"key":"scsi1","delete":1},{"key":"net0","value":"x"}]`), data("null"),
			"POST " + config + ": 400 Parameter verification failed.: scsi1: hotplug problem - error on hot-unplugging device 'scsi1' - still busy in guest?",
			map[string]string{"revert": "scsi1", "digest": "after"},
		},
		"still in use": {
			free, raw("400 Parameter verification failed.", `{"errors":{"scsi1":"unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)\n"},"data":null}`),
			data(`[{"key":"scsi1","delete":2}]`), data("null"),
			"POST " + config + ": 400 Parameter verification failed.: scsi1: unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)",
			map[string]string{"revert": "scsi1", "digest": "after"},
		},
		"cannot be taken back": {
			set, raw("400 hotplug problem", ""), data(`[{"key":"scsi1","delete":1}]`), raw("500 can't lock file", ""),
			"POST " + config + ": 400 hotplug problem\nrevert what the refused change left pending (scsi1): PUT " + config + ": 500 can't lock file",
			map[string]string{"revert": "scsi1", "digest": "after"},
		},
		"the VM is gone": {set, raw(noVM101, ""), raw(noVM101, ""), nil, "POST " + config + ": " + noVM101, nil},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("POST "+config, tc.answer)
		pve1.On(onVM101+"/config", data(`{"digest":"after"}`))
		pve1.On(onVM101+"/pending", tc.pending)
		var params map[string]string
		pve1.On("PUT "+config, sent(&params, tc.revert))
		must.Equal(t, "error", tc.want, fmt.Sprint(tc.do(t, c)))
		must.Equal(t, "taken back", tc.sent, params)
	})
}

// TestRefusedUnplugOfABootDisk: the disk stays in the boot order of the VM's next start.
func TestRefusedUnplugOfABootDisk(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		must.Do(t, l.Start(t.Context(), l.read(t, 9011)))
		if err := l.SetConfig(t.Context(), l.read(t, 9011), nil, []string{"scsi0"}); err == nil {
			t.Error("the disk was unplugged")
		}
		vm := l.read(t, 9011)
		must.Equal(t, "pending and boot", []any{0, "order=scsi0;ide2"}, []any{len(vm.Pending), vm.Config["boot"]})
	})
}

const (
	freed   = `{"digest":"after","scsi0":"fast:101/vm-101-disk-0.raw,size=10G"}`
	content = "GET /nodes/pve1/storage/fast/content"
)

var disks101 = cluster.VM{
	ID: 101, Name: "wk1", Host: "pve1", Digest: "before",
	Config: map[string]string{
		"scsi0": "fast:101/vm-101-disk-0.raw,size=10G", "scsi1": "fast:101/vm-101-disk-1.raw,size=2G", "unused0": "fast:101/vm-101-disk-2.raw",
		"scsi2": "data:200/vm-200-disk-0.raw", "ide2": "isos:iso/x.iso,media=cdrom", "ide0": "none,media=cdrom",
	},
}

func TestFreeDisk(t *testing.T) {
	type row struct {
		key     string
		task    string
		config  string
		pending string
		listed  string
		want    string
	}
	onEachNode(t, map[string]row{
		"drive":    {key: "scsi1", want: "<nil>"},
		"detached": {key: "unused0", want: "<nil>"},
		"task fails": {
			key: "scsi1", task: "unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)",
			want: "task qmdestroy 101 on pve1: unable to delete 'fast:101/vm-101-disk-1.raw' - volume is still in use (snapshot?)",
		},
		"key is still there": {
			key: "scsi1", config: `{"scsi1":"fast:101/vm-101-disk-1.raw,size=2G"}`,
			want: `fast:101/vm-101-disk-1.raw is not freed: it is scsi1 of VM 101 "wk1" on pve1`,
		},
		"key holds another volume": {
			key: "scsi1", config: `{"scsi1":"fast:101/vm-101-disk-9.raw,size=2G"}`,
			want: `fast:101/vm-101-disk-1.raw is freed, but scsi1 of VM 101 "wk1" on pve1 is there again`,
		},
		"detached instead": {
			key: "scsi1", config: `{"unused1":"fast:101/vm-101-disk-1.raw"}`,
			want: `fast:101/vm-101-disk-1.raw is not freed: it is unused1 of VM 101 "wk1" on pve1`,
		},
		"pending": {
			key: "scsi1", pending: `[{"key":"scsi1","value":"fast:101/vm-101-disk-1.raw","delete":2}]`,
			want: `fast:101/vm-101-disk-1.raw is not freed: the removal of scsi1 from VM 101 "wk1" on pve1 is pending`,
		},
		"storage keeps it": {
			key: "scsi1", listed: `[{"volid":"fast:101/vm-101-disk-1.raw","size":1}]`,
			want: `fast:101/vm-101-disk-1.raw is not freed: no drive of VM 101 "wk1" on pve1 holds it, but its storage still has it`,
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		var params map[string]string
		pve1.On("POST /nodes/pve1/qemu/101/config", sent(&params, data(`"`+testUPID+`"`)))
		pve1.On(logPath, data(`[]`))
		pve1.On(statusPath, running, stopped(cmp.Or(tc.task, "OK")))
		pve1.On(onVM101+"/config", data(cmp.Or(tc.config, freed)))
		pve1.On(onVM101+"/pending", data(cmp.Or(tc.pending, "[]")))
		pve1.On(content, data(cmp.Or(tc.listed, `[{"volid":"fast:101/vm-101-disk-0.raw","size":1}]`)))
		must.Equal(t, "error", tc.want, fmt.Sprint(c.FreeDisk(t.Context(), disks101, tc.key)))
		must.Equal(t, "parameters", map[string]string{"delete": tc.key, "force": "1", "digest": "before"}, params)
	})
}

func TestFreeDiskRefuses(t *testing.T) {
	undigested := disks101
	undigested.Digest = ""
	type row struct {
		vm      cluster.VM
		key     string
		want    string
		refused bool
	}
	onEachNode(t, map[string]row{
		"another VM's volume": {disks101, "scsi2", `scsi2 of VM 101 "wk1" on pve1: data:200/vm-200-disk-0.raw is not a volume of this VM, so it is not freed`, true},
		"ISO":                 {disks101, "ide2", `ide2 of VM 101 "wk1" on pve1: isos:iso/x.iso is not a volume of this VM, so it is not freed`, true},
		"empty drive":         {disks101, "ide0", `ide0 of VM 101 "wk1" on pve1: none is not a volume of this VM, so it is not freed`, true},
		"no such drive":       {disks101, "scsi7", `free a disk of VM 101 "wk1" on pve1: scsi7: no volume in ""`, false},
		"no drive":            {disks101, "name", `free a disk of VM 101 "wk1" on pve1: "name" is not a drive`, false},
		"no digest":           {undigested, "scsi1", `VM 101 "wk1" on pve1 was read without a digest, so a change could overwrite someone else's`, false},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		err := c.FreeDisk(t.Context(), tc.vm, tc.key)
		if fmt.Sprint(err) != tc.want || (fault.KindOf(err) == fault.Refused) != tc.refused {
			t.Errorf("error is %v\nwant     %s", err, tc.want)
		}
		must.Equal(t, "requests", []string(nil), pve1.Requests())
	})
}

func TestNormalise(t *testing.T) {
	type row struct {
		raw, err string
		want     map[string]string
	}
	must.Each(t, map[string]row{
		"as Proxmox gives it": {
			`{"digest":"d","memory":"2048","cores":2,"cpulimit":1.5,"numa":0,"onboot":true,"sshkeys":"ssh-ed25519%20AAAA%2Bb%0A","description":"a\n","hotplug":null}`, "",
			map[string]string{
				"memory": "2048", "cores": "2", "cpulimit": "1.5", "numa": "0", "onboot": "1", "sshkeys": "ssh-ed25519%20AAAA%2Bb%0A", "description": "a\n",
			},
		},
		"a section of Proxmox 8":   {`{"digest":"d","name":"a","cloudinit":{"ipconfig0":"ip=dhcp","ide2":"x:vm-1-cloudinit"}}`, "", map[string]string{"name": "a"}},
		"sections of Proxmox 9":    {`{"digest":"d","name":"a","special-sections":{"cloudinit":{"name":"b"},"fleecing":{}}}`, "", map[string]string{"name": "a"}},
		"anything else is a fault": {`{"digest":"d","extra":{"a":1}}`, `extra is neither a text nor a number: {"a":1}`, nil},
		"a list is one, too":       {`{"digest":"d","net0":["a"]}`, `net0 is neither a text nor a number: ["a"]`, nil},
	}, func(t *testing.T, tc row) {
		var raw rawConfig
		must.Do(t, json.Unmarshal([]byte(tc.raw), &raw))
		got, digest, err := raw.normalise()
		if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err || err == nil && digest != "d" {
			t.Fatalf("digest %q, error %v", digest, err)
		}
		must.Equal(t, "configuration", tc.want, got)
	})
}

func TestMergePending(t *testing.T) {
	t.Parallel()
	var rows []pendingRow
	must.Do(t, json.Unmarshal([]byte(`[
		{"key":"name","value":"wk1"}, {"key":"cores","value":2,"pending":4}, {"key":"scsi1","value":"fast:1","delete":1},
		{"key":"onboot","value":0,"delete":1}, {"key":"kvm","value":1,"pending":0,"delete":2}, {"key":"tags","pending":"talos"}, {"key":"gone","delete":1},
		{"key":"memory","value":"4096","delete":0}, {"key":"digest","value":"abc"}]`), &rows))
	config, digest, err := mergePending(rows).normalise()
	want := map[string]string{"name": "wk1", "cores": "4", "onboot": "0", "kvm": "0", "tags": "talos", "memory": "4096"}
	must.Do(t, err)
	must.Equal(t, "digest", "abc", digest)
	must.Equal(t, "configuration", want, config)
}

func TestSameValue(t *testing.T) {
	type row struct {
		key, want, now string
		same           bool
	}
	must.Each(t, map[string]row{
		"as written":                 {"memory", "2048", "2048", true},
		"another one":                {"memory", "2048", "4096", false},
		"gone":                       {"memory", "2048", "", false},
		"tags are sorted":            {"tags", "talos;roll", "roll;talos", true},
		"tags, one more":             {"tags", "talos;roll", "other;roll;talos", false},
		"description loses its end":  {"description", "a\nb\n", "a\nb", true},
		"options change places":      {"smbios1", "uuid=u,serial=s", "serial=s,uuid=u", true},
		"options, one more":          {"smbios1", "uuid=u", "serial=s,uuid=u", false},
		"card gets its address":      {"net0", "virtio,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", true},
		"card, address in lower":     {"net0", "virtio=bc:24:11:00:00:01,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", true},
		"card, another address":      {"net0", "virtio=BC:24:11:00:00:02,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"card, another model":        {"net0", "e1000,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"card, another bridge":       {"net0", "virtio,bridge=vmbr1", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"drive is allocated":         {"scsi0", "fast:10,serial=a,format=qcow2", "fast:101/vm-101-disk-0.qcow2,serial=a,size=10G", true},
		"drive, block storage":       {"efidisk0", "fast:1,efitype=4m", "fast:vm-101-disk-1,efitype=4m,pre-enrolled-keys=0,size=528K", true},
		"drive elsewhere":            {"scsi0", "fast:10,serial=a", "slow:vm-101-disk-0,serial=a,size=10G", false},
		"drive without its serial":   {"scsi0", "fast:10,serial=a", "fast:vm-101-disk-0,size=10G", false},
		"drive is imported":          {"scsi0", "fast:0,import-from=local:import/a.qcow2,serial=a", "fast:101/vm-101-disk-0.qcow2,serial=a,size=6M", true},
		"imported, another serial":   {"scsi0", "fast:0,import-from=local:import/a.qcow2,serial=a", "fast:101/vm-101-disk-0.qcow2,serial=b,size=6M", false},
		"cloud-init drive":           {"ide0", "fast:cloudinit,format=raw", "fast:101/vm-101-cloudinit.raw,media=cdrom,size=4M", true},
		"cloud-init drive elsewhere": {"ide0", "fast:cloudinit", "slow:vm-101-cloudinit,media=cdrom,size=4M", false},
		"another drive in its place": {"ide0", "fast:cloudinit", "fast:vm-101-disk-0,size=4M", false},
		"existing volume":            {"scsi0", "fast:vm-101-disk-0,discard=on", "fast:vm-101-disk-0,discard=on,size=2G", true},
		"a boolean spelled out":      {"scsi0", "fast:vm-101-disk-0,iothread=on", "fast:vm-101-disk-0,iothread=1,size=2G", true},
		"another boolean":            {"scsi0", "fast:vm-101-disk-0,iothread=on", "fast:vm-101-disk-0,iothread=0,size=2G", false},
		"size is read afresh":        {"scsi0", "fast:vm-101-disk-0,size=2G", "fast:vm-101-disk-0,size=3G", true},
		"another volume":             {"scsi0", "fast:vm-101-disk-0", "fast:vm-101-disk-1,size=2G", false},
		"CD":                         {"ide2", "isos:iso/a.iso,media=cdrom", "isos:iso/a.iso,media=cdrom,size=9M", true},
		"another CD":                 {"ide2", "none,media=cdrom", "isos:iso/a.iso,media=cdrom,size=9M", false},
		"password cannot be read":    {"cipassword", "hunter2", "**********", true},
		"password is not there":      {"cipassword", "hunter2", "", false},
		"nothing is asked for drive": {"scsi0", "fast:10", "fast:vm-101-disk-0,size=10G", true},
	}, func(t *testing.T, tc row) { must.Equal(t, "result", tc.same, sameValue(tc.key, tc.want, tc.now)) })
}
