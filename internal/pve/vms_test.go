package pve

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	listPath = "GET /cluster/resources?type=vm"
	noVM101  = `500 Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist`
)

// vm101 makes pve1 answer about VM 101 as Proxmox does: some numbers are strings.
func vm101(pve1 *fake) {
	pve1.On(listPath, data(`[{"type":"qemu","id":"qemu/101","vmid":101,"node":"pve1","name":"wk1","status":"running","pool":"talos","template":0,"hastate":"started"},
		{"type":"lxc","id":"lxc/200","vmid":200,"node":"pve1","name":"ct","status":"running"}]`))
	pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
	pve1.On("GET /nodes/pve1/qemu/101/config", data(`{"name":"wk1","memory":"4096","cores":2,"onboot":1,"agent":"1","protection":true,"kvm":false,"cpulimit":1.50,
		"smbios1":"uuid=AB-CD","description":"two\nlines\n","lock":"backup","digest":"abc","cicustom":null}`))
	pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[{"key":"memory","value":"2048","pending":4096},{"key":"name","value":"wk1"},{"key":"ide2","value":"none","delete":1}]`))
	pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"running","qmpstatus":"io-error","ha":{"managed":1,"state":"started"}}`))
}

var wantVM101 = cluster.VM{
	ID: 101, Name: "wk1", Host: "pve1", Running: true, Lock: "backup", HA: true, Pool: "talos", Digest: "abc",
	Config: map[string]string{
		"name": "wk1", "memory": "4096", "cores": "2", "onboot": "1", "agent": "1", "protection": "1", "kvm": "0", "cpulimit": "1.50",
		"smbios1": "uuid=AB-CD", "description": "two\nlines\n", "lock": "backup",
	},
	Pending: []string{"ide2", "memory"},
}

// wantVM101Alone is VM 101 when read alone: its own answers do not name the pool.
func wantVM101Alone() cluster.VM {
	vm := wantVM101
	vm.QMP, vm.Pool = "io-error", ""
	return vm
}

func TestContainers(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		got := must.Get(c.Containers(t.Context()))(t)
		must.Equal(t, "containers", []cluster.Container{{ID: 200, Name: "ct", Host: "pve1"}}, got)
	})
}

func TestVMsLeavesOutOneJustDeleted(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes/pve1/qemu/101/config", raw(noVM101, ""))
		pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
		vms, err := c.VMs(t.Context())
		must.Hold(t, err == nil && len(vms) == 0, "lists %v, error %v", vms, err)
	})
}

func TestVM(t *testing.T) {
	const nextID = "GET /cluster/nextid?vmid=101"
	none, free := data(`[]`), data(`"101"`)
	taken := raw("400 Parameter verification failed.", `{"errors":{"vmid":"VM 101 already exists"},"data":null}`)
	listed := data(`[{"type":"qemu","id":"qemu/101","vmid":101,"node":"pve1","name":"wk1","status":"running","pool":"talos","hastate":"started"}]`)
	type row struct {
		answers routes // other than vm101's
		missing bool
		err     string
		hints   int
	}
	onEachNode(t, map[string]row{
		"is there": {},
		"is not listed and its number is free": {
			answers: routes{listPath: {none}, nextID: {free}}, missing: true, err: "find VM 101: not found",
		},
		"is listed but just deleted": {
			answers: routes{onVM101 + "/config": {raw(noVM101, "")}, nextID: {free}}, missing: true, err: "find VM 101: not found",
		},
		"is there before it is listed": {answers: routes{listPath: {none, none, listed}, nextID: {taken}}},
		"cannot be seen": {
			answers: routes{listPath: {none}, nextID: {taken}}, err: "find VM 101: its number is taken, but no node shows it", hints: 1,
		},
		"cannot be asked about": {
			answers: routes{onVM101 + "/config": {raw("595 No route to host", "")}},
			err:     "find VM 101: Proxmox host pve1 does not answer (595 No route to host), so VM 101 can't be read", hints: 1,
		},
		"may not be asked about": {
			answers: routes{listPath: {raw("403 Permission check failed (/, Sys.Audit)", "")}},
			err:     "find VM 101: GET /cluster/resources: 403 Permission check failed (/, Sys.Audit)", hints: 1,
		},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		vm101(pve1)
		for request, answers := range tc.answers {
			pve1.On(request, answers...)
		}
		start := time.Now()
		got, err := c.VM(t.Context(), 101)
		must.Equal(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
		must.Hold(t, errors.Is(err, cluster.ErrNotFound) == tc.missing && len(fault.Hints(err)) == tc.hints,
			"not found: %v, hints: %q", !tc.missing, fault.Hints(err))
		if tc.err == "" {
			must.Equal(t, "VM", wantVM101Alone(), got)
		}
		must.Take(t, start, 0, listLag+time.Minute)
	})
}

func TestQuorate(t *testing.T) {
	type row struct {
		answer    string
		want, err bool
	}
	onEachNode(t, map[string]row{
		"cluster":            {`[{"type":"node","name":"pve1"},{"type":"cluster","quorate":1},{"type":"node","name":"pve2"}]`, true, false},
		"number as text":     {`[{"type":"cluster","quorate":"1"}]`, true, false},
		"lost":               {`[{"type":"cluster","quorate":0},{"type":"node","name":"pve1"}]`, false, false},
		"unknown":            {`[{"type":"cluster"},{"type":"node","name":"pve1"}]`, false, false},
		"single node":        {`[{"type":"node","name":"pve1"}]`, true, false},
		"nothing":            {`[]`, false, true},
		"nodes, no cluster":  {`[{"type":"node"},{"type":"node"}]`, false, true},
		"something entirely": {`"quorate"`, false, true},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("GET /cluster/status", data(tc.answer))
		got, err := c.Quorate(t.Context())
		must.Hold(t, got == tc.want && (err != nil) == tc.err, "quorate %v, error %v", got, err)
	})
}

func TestPermissions(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /access/permissions?path=%2Fvms", data(`{"/vms":{"VM.PowerMgmt":"1","VM.Audit":0}}`), data(`{"/vms":{}}`), data(`{}`))
		for _, want := range []cluster.Privileges{{"VM.Audit": false, "VM.PowerMgmt": true}, {}, {}} {
			must.Equal(t, "permissions", want, must.Get(c.Permissions(t.Context(), "/vms"))(t))
		}
	})
}

// TestVMsOfAListThatIsBehind: the list shows a VM as being created, but its host
// shows it as complete. VMs completed before it may be missing from the list.
func TestVMsOfAListThatIsBehind(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		const ours = `{"type":"qemu","vmid":9000,"node":"pve1","status":"unknown"`
		pve1.On(listPath, data(`[`+ours+`,"lock":"create"}]`),
			data(`[`+ours+`},{"type":"qemu","vmid":9100,"node":"pve1","status":"unknown","lock":"create"}]`),
			data(`[`+ours+`},{"type":"qemu","vmid":9100,"node":"pve1","status":"unknown"}]`))
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		for _, id := range []string{"9000", "9100"} {
			pve1.On("GET /nodes/pve1/qemu/"+id+"/pending", data(`[{"key":"digest","value":"d"},{"key":"name","value":"recast-claim"}]`))
		}
		vms, err := c.VMs(t.Context())
		must.Hold(t, err == nil && len(vms) == 2 && vms[0].ID == 9000 && vms[1].ID == 9100, "VMs %v, %v", vms, err)
	})
}

func TestStanding(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /access/permissions?path=%2Faccess", data(`{"/access":{"Sys.Audit":1}}`), data(`{"/access":{}}`))
		pve1.On("GET /access/permissions?path=%2Fvms", data(`{"/vms":{"VM.Audit":1}}`))
		pve1.On("GET /access/permissions?path=%2Fvms&userid=recast%40pve", data(`{"/vms":{"VM.Audit":"1","VM.Console":0}}`))
		pve1.On("GET /access/acl", data(`[{"path":"/vms","ugid":"recast@pve","roleid":"A","type":"user","propagate":"1"},
			{"path":"/vms","ugid":"recast@pve!roll","roleid":"A","type":"token","propagate":0},{"path":"/","ugid":"recast@pve!roll","roleid":"A","type":"token","propagate":1},
			{"path":"/vms","ugid":"recast@pve","roleid":"B","type":"user","propagate":0}]`))
		for _, want := range []cluster.Standing{
			{Token: cluster.Privileges{"VM.Audit": true}, User: cluster.Privileges{"VM.Audit": true, "VM.Console": false}, UserEntry: true, Whole: true},
			{Token: cluster.Privileges{"VM.Audit": true}}, // it may not see more
		} {
			got := must.Get(c.Standing(t.Context(), []string{"/vms"}))(t)
			must.Equal(t, "standing", map[string]cluster.Standing{"/vms": want}, got)
		}
	})
}

// on101 are pve1's answers about VM 101 for another host.
func on101(pve1 *fake, host, what string) {
	for _, path := range []string{"config", "pending", "status/current"} {
		pve1.On("GET /nodes/"+host+"/qemu/101/"+path, pve1.Answers("GET /nodes/pve1/qemu/101/"+path)...)
	}
	if what != "" {
		for _, path := range []string{"config", "pending", "status/current"} {
			pve1.On("GET /nodes/pve1/qemu/101/"+path, raw(what, ""))
		}
	}
}

// TestVMWhereLastSeen: a VM is read where it was last seen, and looked up if it is not
// there, may have moved, or was seen too long ago.
func TestVMWhereLastSeen(t *testing.T) {
	moved := func(what string) func(pve1 *fake) {
		return func(pve1 *fake) {
			pve1.On(listPath, data(`[{"type":"qemu","vmid":101,"node":"pve2","status":"running"}]`))
			on101(pve1, "pve2", what)
		}
	}
	deleted := func(what string) func(pve1 *fake) {
		return func(pve1 *fake) {
			pve1.On(listPath, data(`[]`))
			pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
			on101(pve1, "pve2", what)
		}
	}
	type row struct {
		then    func(pve1 *fake) // after the first read
		later   time.Duration
		host    string
		listed  int // how often the second read asks for the list
		missing bool
	}
	onEachNode(t, map[string]row{
		"there still":              {host: "pve1"},
		"long ago":                 {later: seenFor, host: "pve1", listed: 1},
		"migrated":                 {then: moved(noVM101), host: "pve2", listed: 1},
		"the host does not answer": {then: moved("595 No route to host"), host: "pve2", listed: 2},
		"it may not be read there": {then: moved("403 Permission check failed (/vms/101, VM.Audit)"), host: "pve2", listed: 1},
		"off there, on elsewhere": {then: func(pve1 *fake) {
			moved("")(pve1)
			pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
		}, host: "pve2", listed: 1},
		"the host has left the cluster": {then: moved("500 hostname lookup 'pve1' failed - failed to get address info for: pve1: Name or service not known"), host: "pve2", listed: 1},
		"migrated between two reads": {then: func(pve1 *fake) {
			moved("")(pve1)
			pve1.On("GET /nodes/pve1/qemu/101/status/current", raw(noVM101, ""))
		}, host: "pve2", listed: 1},
		"fenced, and shown by a host that was cut off": {then: moved(""), later: seenFor, host: "pve2", listed: 1},
		"deleted, and seen through its pool alone":     {then: deleted("403 Permission check failed (/vms/101, VM.Audit)"), listed: 1, missing: true},
		"deleted": {then: deleted(noVM101), listed: 1, missing: true},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		vm101(pve1)
		must.Get(c.VM(t.Context(), 101))(t)
		before := len(pve1.Requests())
		if tc.then != nil {
			tc.then(pve1)
		}
		time.Sleep(tc.later)
		got, err := c.VM(t.Context(), 101)
		must.Be(t, errors.Is(err, cluster.ErrNotFound) == tc.missing && (tc.missing || err == nil), "%v", err)
		if want := wantVM101Alone(); !tc.missing {
			want.Host = tc.host
			must.Equal(t, "VM", want, got)
		}
		listed := slices.DeleteFunc(pve1.Requests()[before:], func(r string) bool { return r != listPath })
		must.Equal(t, "how often the list was asked", tc.listed, len(listed))
	})
}

// TestVMThatWasOff: what proves where a VM is that is off, the cluster's list, is asked for
// while the VM is read where it was seen. If it shows another host, the VM is read there.
func TestVMThatWasOff(t *testing.T) {
	list := func(status, host string) string {
		return `[{"type":"qemu","vmid":101,"node":"` + host + `","name":"wk1","status":"` + status + `"}]`
	}
	type row struct {
		list  string // of the second read
		nodes string // the state of pve1
		after func(pve1 *fake)
		host  string
		took  time.Duration // each answer takes a second
		away  bool
	}
	onEachNode(t, map[string]row{
		"off there still":        {list: list("stopped", "pve1"), host: "pve1", took: time.Second},
		"on there by now":        {list: list("stopped", "pve1"), host: "pve1", took: time.Second, after: func(pve1 *fake) { vm101(pve1) }},
		"moved":                  {list: list("stopped", "pve2"), host: "pve2", took: 3 * time.Second},
		"no state, host online":  {list: list("unknown", "pve1"), nodes: "online", host: "pve1", took: 3 * time.Second},
		"no state, host offline": {list: list("unknown", "pve1"), nodes: "offline", away: true, took: 2 * time.Second},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		vm101(pve1)
		pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
		on101(pve1, "pve2", "")
		pve1.On(listPath, data(list("stopped", "pve1")))
		must.Get(c.VM(t.Context(), 101))(t)
		if tc.after != nil {
			tc.after(pve1)
		}
		pve1.On(listPath, data(tc.list))
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"`+tc.nodes+`"}]`))
		for _, path := range []string{listPath, "GET /nodes/pve1/qemu/101/pending", "GET /nodes/pve1/qemu/101/status/current", "GET /nodes/pve2/qemu/101/pending", "GET /nodes/pve2/qemu/101/status/current"} {
			pve1.On(path, after(time.Second, pve1.Answers(path)[0]))
		}
		began := time.Now()
		vm, err := c.VM(t.Context(), 101)
		if _, away := errors.AsType[*cluster.HostsAway](err); away != tc.away || !tc.away && err != nil {
			t.Fatal(err)
		}
		must.Equal(t, "host", tc.host, vm.Host)
		must.Equal(t, "how long it took", tc.took, time.Since(began))
		must.Equal(t, "on", tc.after != nil, vm.Running)
	})
}

// TestVMWhoseHostIsUnknown: if the list has no state of a VM, its host may be
// unreachable, which the next read has to find out as well.
func TestVMWhoseHostIsUnknown(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On(listPath, data(`[{"type":"qemu","vmid":101,"node":"pve1","status":"unknown"}]`))
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"offline"}]`))
		for range 2 {
			vm, err := c.VM(t.Context(), 101)
			_, away := errors.AsType[*cluster.HostsAway](err)
			must.Hold(t, away, "read %v, error %v", vm, err)
		}
	})
}

// TestVMWhereLastSeenUnanswered does not ask a host again that did not answer: that takes half a minute.
func TestVMWhereLastSeenUnanswered(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		vm101(pve1)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		c := s.client(t, "pve1")
		must.Get(c.VM(t.Context(), 101))(t)
		on101(pve1, "pve2", "595 No route to host")
		asked := func(c *Client) int {
			before := len(pve1.Requests())
			_, err := c.VM(t.Context(), 101)
			_, away := errors.AsType[*cluster.HostsAway](err)
			must.Hold(t, away, "error %v", err)
			return len(slices.DeleteFunc(pve1.Requests()[before:], func(r string) bool { return !strings.Contains(r, "/qemu/101/") }))
		}
		had := asked(c)
		must.Equal(t, "requests, as of a new client", asked(s.client(t, "pve1")), had)
	})
}

// TestVMConfig asks only for the configuration, and never reports the VM as off.
func TestVMConfig(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes/pve1/qemu/101/status/current", data(`{"status":"stopped","qmpstatus":"stopped"}`))
		for range 2 {
			got := must.Get(c.VMConfig(t.Context(), 101))(t)
			want := wantVM101Alone()
			want.QMP, want.HA, want.Running = "", false, true
			must.Equal(t, "VM", want, got)
		}
		must.Hold(t, !strings.Contains(fmt.Sprint(pve1.Requests()), "status/current"), "asked %s", pve1.Requests())
	})
}

func TestPool(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		must.Equal(t, "pool", "talos", must.Get(c.Pool(t.Context(), 101))(t))
		_, err := c.Pool(t.Context(), 102)
		wantError(t, err, cluster.ErrNotFound, "")
	})
}

func TestHosts(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /cluster/status", data(`[{"type":"cluster","name":"c","quorate":1},{"type":"node","name":"pve1","online":1,"local":1},{"type":"node","name":"pve2","online":0,"local":0}]`))
		pve1.On("GET /nodes/pve1/version", data(`{"version":"8.4.1","release":"8.4"}`))
		pve1.On("GET /nodes/pve1/time", data(`{"time":1700000000,"localtime":1700003600,"timezone":"Europe/Berlin"}`))
		pve1.On("GET /nodes/pve1/status", data(`{"rootfs":{"total":100,"used":10,"avail":90,"free":90}}`))
		pve1.On("GET /nodes/pve1/disks/lvmthin", data(`[{"lv":"data","vg":"pve","lv_size":100,"used":"50","metadata_size":10,"metadata_used":1}]`))
		got := must.Get(c.Hosts(t.Context()))(t)
		want := []cluster.Host{
			{
				Name: "pve1", Online: true, Entry: true, Version: "8.4.1", Clock: time.Unix(1700000000, 0), Asked: time.Now(), SpoolFree: 90,
				ThinPools: []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 50, MetaSize: 10, MetaUsed: 1}},
			},
			{Name: "pve2"},
		}
		must.Equal(t, "hosts", want, got, cmpopts.EquateApproxTime(time.Second))
	})
}

func TestHostsOfATokenWithNothing(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		denied := raw("403 Permission check failed (/, Sys.Audit)", "")
		pve1.On("GET /cluster/status", denied)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		pve1.On("GET /nodes/pve1/version", data(`{"version":"9.2.11"}`))
		for _, what := range []string{"time", "status", "disks/lvmthin"} {
			pve1.On("GET /nodes/pve1/"+what, denied)
		}
		got, err := c.Hosts(t.Context())
		must.Be(t, err == nil && len(got) == 1 && got[0].Version == "9.2.11" && got[0].Online, "%+v, %v", got, err)
		for _, err := range append(got[0].Errs, got[0].ErrPools) {
			must.FailAs(t, err, fault.Refused, "Sys.Audit")
		}
		must.Equal(t, "errors", 2, len(got[0].Errs))
	})
}

// threeHosts is pve1 with VM 101, for which it answers itself, and pve2 in that state, of which pve1 knows two VMs;
// answer is about those, nil: nobody may ask.
func threeHosts(pve1 *fake, pve2 string, answer route) {
	vm101(pve1)
	pve1.On(listPath, data(`[{"type":"qemu","vmid":202,"node":"pve2","status":"unknown"},
		{"type":"qemu","vmid":101,"node":"pve1","name":"wk1","status":"running","pool":"talos","hastate":"started"},
		{"type":"qemu","vmid":201,"node":"pve2","name":"wk2","status":"running"}]`))
	pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"`+pve2+`"},{"node":"pve3","status":"offline"}]`))
	if answer != nil {
		pve1.On("GET /nodes/pve2/qemu/201/pending", answer)
		pve1.On("GET /nodes/pve2/qemu/202/pending", answer)
	}
}

func awayOn(why string) cluster.HostsAway {
	return cluster.HostsAway{
		Hosts: []cluster.AwayHost{{Name: "pve2", Why: why}},
		VMs:   []cluster.VM{{ID: 201, Name: "wk2", Host: "pve2", Running: true}, {ID: 202, Host: "pve2"}},
	}
}

func TestVMsOfHostsThatDoNotAnswer(t *testing.T) {
	type row struct {
		state  string
		answer route
		want   cluster.HostsAway
		within time.Duration
	}
	const refused, late = "595 Connection refused", "595 Connection timed out"
	onEachNode(t, map[string]row{
		"offline":                         {"offline", nil, awayOn("is offline"), 0},
		"its pveproxy is down":            {"online", raw(refused, ""), awayOn("does not answer (" + refused + ")"), 5 * time.Second},
		"it went down while it was asked": {"online", after(30*time.Second, raw(late, "")), awayOn("does not answer (" + late + ")"), 2 * time.Minute},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		threeHosts(pve1, tc.state, tc.answer)
		began := time.Now()
		vms, err := c.VMs(t.Context())
		away, ok := errors.AsType[*cluster.HostsAway](err)
		must.Be(t, ok && len(fault.Hints(err)) != 0, "err = %v, hints %q", err, fault.Hints(err))
		must.Equal(t, "hosts", tc.want, *away)
		must.Equal(t, "VMs", []cluster.VM{wantVM101}, vms)
		must.Take(t, began, 0, tc.within)
	})
}

// TestUnreachableHostWithoutVMs: nothing relevant can be on it.
func TestUnreachableHostWithoutVMs(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"},{"node":"pve2","status":"offline"}]`))
		must.Equal(t, "VMs", []cluster.VM{wantVM101}, must.Get(c.VMs(t.Context()))(t))
	})
}

func TestVMOnAHostThatDoesNotAnswer(t *testing.T) {
	type row struct {
		id     cluster.VMID
		state  string
		answer route // for the VM; nil: nobody may ask
		want   string
		within time.Duration
	}
	onEachNode(t, map[string]row{
		"known to be offline": {202, "offline", nil, "find VM 202: Proxmox host pve2 is offline, so VM 202 can't be read", 0},
		"found to be offline": {201, "offline", raw("595 No route to host", ""), "find VM 201: Proxmox host pve2 is offline, so VM 201 can't be read", 5 * time.Second},
		"does not answer":     {202, "online", raw("595 Connection refused", ""), "find VM 202: Proxmox host pve2 does not answer (595 Connection refused), so VM 202 can't be read", 5 * time.Second},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		threeHosts(pve1, tc.state, tc.answer)
		began := time.Now()
		_, err := c.VM(t.Context(), tc.id)
		must.Hold(t, err != nil && err.Error() == tc.want && !errors.Is(err, cluster.ErrNotFound) && len(fault.Hints(err)) != 0,
			"err = %v, want %s; hints %q", err, tc.want, fault.Hints(err))
		must.Take(t, began, 0, tc.within)
	})
}

// sent records the parameters of the last change and answers with then.
func sent(params *map[string]string, then route) route {
	return func(w http.ResponseWriter, r *http.Request) {
		*params = nil
		if err := json.NewDecoder(r.Body).Decode(params); err != nil && r.ContentLength != 0 {
			raw("400 "+err.Error(), "")(w, r)
			return
		}
		then(w, r)
	}
}

type sentChange struct {
	do      func(*testing.T, *Client) error
	request string
	params  map[string]string // nil: no body
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
		"delete": {
			func(t *testing.T, c *Client) error { return c.DeleteVM(t.Context(), vm) }, "DELETE /nodes/pve1/qemu/101", nil, true,
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
		do                      func(*testing.T, *Client) error
		answer, pending, revert route
		want                    string // error
		sent                    map[string]string
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
		must.Hold(t, l.SetConfig(t.Context(), l.read(t, 9011), nil, []string{"scsi0"}) != nil, "the disk was unplugged")
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
		key, task, config, pending, listed, want string
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
		vm        cluster.VM
		key, want string
		refused   bool
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
		must.Hold(t, fmt.Sprint(err) == tc.want && (fault.KindOf(err) == fault.Refused) == tc.refused,
			"error is %v\nwant     %s", err, tc.want)
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
		must.Be(t, (err == nil) == (tc.err == "") && (err == nil || err.Error() == tc.err) && (err != nil || digest == "d"),
			"digest %q, error %v", digest, err)
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
	must.Equal(t, "merged", []any{want, "abc", nil}, []any{config, digest, err})
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
