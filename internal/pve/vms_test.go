package pve

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
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
		got, err := c.Containers(t.Context())
		must(t, err)
		same(t, "containers", []cluster.Container{{ID: 200, Name: "ct", Host: "pve1"}}, got)
	})
}

func TestVMsLeavesOutOneJustDeleted(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		vm101(pve1)
		pve1.On("GET /nodes/pve1/qemu/101/config", raw(noVM101, ""))
		pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
		vms, err := c.VMs(t.Context())
		if err != nil || len(vms) > 0 {
			t.Errorf("lists %v, error %v", vms, err)
		}
	})
}

func TestVM(t *testing.T) {
	t.Parallel()
	taken := raw("400 Parameter verification failed.", `{"errors":{"vmid":"VM 101 already exists"},"data":null}`)
	cases := map[string]struct {
		prepare func(pve1 *fake)
		want    cluster.VM
		missing bool
		err     string
		hints   int
	}{
		"is there": {prepare: vm101, want: wantVM101Alone()},
		"is not listed and its number is free": {
			prepare: func(pve1 *fake) {
				pve1.On(listPath, data(`[]`))
				pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
			},
			missing: true, err: "find VM 101: not found",
		},
		"is listed but just deleted": {
			prepare: func(pve1 *fake) {
				vm101(pve1)
				pve1.On("GET /nodes/pve1/qemu/101/config", raw(noVM101, ""))
				pve1.On("GET /cluster/nextid?vmid=101", data(`"101"`))
			},
			missing: true, err: "find VM 101: not found",
		},
		"is there before it is listed": {
			prepare: func(pve1 *fake) {
				vm101(pve1)
				listed := pve1.Answers(listPath)[0]
				pve1.On(listPath, data(`[]`), data(`[]`), listed)
				pve1.On("GET /cluster/nextid?vmid=101", taken)
			},
			want: wantVM101Alone(),
		},
		"cannot be seen": {
			prepare: func(pve1 *fake) {
				pve1.On(listPath, data(`[]`))
				pve1.On("GET /cluster/nextid?vmid=101", taken)
			},
			err: "find VM 101: its number is taken, but no node shows it", hints: 1,
		},
		"cannot be asked about": {
			prepare: func(pve1 *fake) {
				vm101(pve1)
				pve1.On("GET /nodes/pve1/qemu/101/config", raw("595 No route to host", ""))
			},
			err: "find VM 101: Proxmox host pve1 does not answer (595 No route to host), so VM 101 can't be read", hints: 1,
		},
		"may not be asked about": {
			prepare: func(pve1 *fake) { pve1.On(listPath, raw("403 Permission check failed (/, Sys.Audit)", "")) },
			err:     "find VM 101: GET /cluster/resources: 403 Permission check failed (/, Sys.Audit)", hints: 1,
		},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			tc.prepare(pve1)
			start := time.Now()
			got, err := c.VM(t.Context(), 101)
			same(t, "error", cmp.Or(tc.err, "<nil>"), fmt.Sprint(err))
			if errors.Is(err, cluster.ErrNotFound) != tc.missing || len(fault.Hints(err)) != tc.hints {
				t.Errorf("not found: %v, hints: %q", !tc.missing, fault.Hints(err))
			}
			if tc.err == "" {
				same(t, "VM", tc.want, got)
			}
			if took := time.Since(start); took > listLag+time.Minute {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestQuorate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		answer string
		want   bool
		err    bool
	}{
		"cluster":            {`[{"type":"node","name":"pve1"},{"type":"cluster","quorate":1},{"type":"node","name":"pve2"}]`, true, false},
		"number as text":     {`[{"type":"cluster","quorate":"1"}]`, true, false},
		"lost":               {`[{"type":"cluster","quorate":0},{"type":"node","name":"pve1"}]`, false, false},
		"unknown":            {`[{"type":"cluster"},{"type":"node","name":"pve1"}]`, false, false},
		"single node":        {`[{"type":"node","name":"pve1"}]`, true, false},
		"nothing":            {`[]`, false, true},
		"nodes, no cluster":  {`[{"type":"node"},{"type":"node"}]`, false, true},
		"something entirely": {`"quorate"`, false, true},
	}
	for name, tc := range cases {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			pve1.On("GET /cluster/status", data(tc.answer))
			got, err := c.Quorate(t.Context())
			if got != tc.want || (err != nil) != tc.err {
				t.Errorf("quorate %v, error %v", got, err)
			}
		})
	}
}

func TestPermissions(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("GET /access/permissions?path=%2Fvms", data(`{"/vms":{"VM.PowerMgmt":"1","VM.Audit":0}}`), data(`{"/vms":{}}`), data(`{}`))
		for _, want := range []cluster.Privileges{{"VM.Audit": false, "VM.PowerMgmt": true}, {}, {}} {
			got, err := c.Permissions(t.Context(), "/vms")
			must(t, err)
			same(t, "permissions", want, got)
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
		if err != nil || len(vms) != 2 || vms[0].ID != 9000 || vms[1].ID != 9100 {
			t.Errorf("VMs %v, %v", vms, err)
		}
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
			got, err := c.Standing(t.Context(), []string{"/vms"})
			must(t, err)
			same(t, "standing", map[string]cluster.Standing{"/vms": want}, got)
		}
	})
}
