package pve

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// seesAll answers as for a token that sees every VM.
func seesAll(f *fake) {
	f.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
	f.On("GET /access/permissions", data(`{"/":{"Sys.Audit":1,"VM.Audit":1},"/access":{"Sys.Audit":1},"/vms":{"VM.Audit":1},"/vms/101":{"VM.Audit":0}}`))
	f.On("GET /access/acl", data(`[{"path":"/","ugid":"recast@pve!roll","roleid":"Recast","type":"token","propagate":1},
		{"path":"/vms/101","ugid":"else@pve","roleid":"NoAccess","type":"user","propagate":1},
		{"path":"/pool/lab","ugid":"else@pve","roleid":"NoAccess","type":"user","propagate":1}]`))
}

func TestUses(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		seesAll(pve1)
		moved := data(`[{"type":"qemu","vmid":101,"node":"pve1","name":"wk1","status":"running"},{"type":"lxc","vmid":102,"node":"pve1","name":"ct"},
			{"type":"qemu","vmid":103,"node":"pve2","name":"gone","status":"stopped"}]`)
		pve1.On("GET /cluster/resources?type=vm", moved)
		pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[{"key":"description","value":"was made from iso/y.iso"},{"key":"cores","value":2},
			{"key":"ide2","value":"local:iso/a.iso,media=cdrom","pending":"none,media=cdrom"},{"key":"ide3","value":"local:iso/b.iso,media=cdrom","delete":1},
			{"key":"sata0","pending":"local:iso/c.iso,media=cdrom"}]`))
		pve1.On("GET /nodes/pve1/qemu/101/snapshot", data(`[{"name":"before"},{"name":"current","running":1}]`))
		pve1.On("GET /nodes/pve1/qemu/101/snapshot/before/config", data(`{"ide2":"local:iso/d.iso,media=cdrom","memory":"512","description":"x","snaptime":1}`))
		pve1.On("GET /nodes/pve2/qemu/103/pending", raw("500 Configuration file 'nodes/pve2/qemu-server/103.conf' does not exist", ""))
		pve1.On("GET /nodes/pve2/qemu/103/config", raw("500 Configuration file 'nodes/pve2/qemu-server/103.conf' does not exist", ""))
		pve1.On("GET /cluster/nextid?vmid=103", data(`"103"`))
		got, err := c.Uses(t.Context())
		must(t, err)
		want := []images.Use{
			{By: `VM 101 "wk1" on pve1`, Values: []string{
				"2", "local:iso/a.iso,media=cdrom", "none,media=cdrom", "local:iso/b.iso,media=cdrom", "local:iso/c.iso,media=cdrom",
			}},
			{By: `snapshot before of VM 101 "wk1" on pve1`, Values: []string{"1", "512", "local:iso/d.iso,media=cdrom"}},
		}
		same(t, "uses", want, got)
	})
}

func TestUsesFails(t *testing.T) {
	t.Parallel()
	const seen = `[{"type":"qemu","vmid":101,"node":"pve1","name":"wk1"}]`
	for name, tc := range map[string]struct {
		change func(*fake)
		want   string
		kind   fault.Kind
	}{
		"a token that has nothing": {
			func(f *fake) { f.On("GET /access/permissions", data(`{}`)) }, "it has no VM.Audit on /vms that propagates", fault.Refused,
		},
		"VM.Audit that does not propagate": {
			func(f *fake) {
				f.On("GET /access/permissions", data(`{"/access":{"Sys.Audit":1},"/vms":{"VM.Audit":0}}`))
			}, "it has no VM.Audit on /vms that propagates", fault.Refused,
		},
		"a VM with less": {
			func(f *fake) {
				f.On("GET /access/permissions", data(`{"/access":{"Sys.Audit":1},"/vms":{"VM.Audit":1},"/vms/101":{"VM.Console":1}}`))
			}, "it has no VM.Audit on /vms/101", fault.Refused,
		},
		"a VM with nothing, which is not listed": {
			func(f *fake) {
				f.On("GET /access/acl", data(`[{"path":"/vms/105","ugid":"recast@pve","roleid":"NoAccess","type":"user"}]`))
			}, "it has no VM.Audit on /vms/105", fault.Refused,
		},
		"a pool that is hidden": {
			func(f *fake) {
				f.On("GET /access/acl", data(`[{"path":"/pool/lab","ugid":"recast@pve!roll","roleid":"NoAccess","type":"token"}]`))
			}, "it has no VM.Audit on /pool/lab: the role NoAccess is given there", fault.Refused,
		},
		"a pool that is hidden from a group": {
			func(f *fake) {
				f.On("GET /access/acl", data(`[{"path":"/pool/lab","ugid":"bots","roleid":"NoAccess","type":"group"}]`))
			}, "it has no VM.Audit on /pool/lab: the role NoAccess is given there", fault.Refused,
		},
		"an access list that may be short": {
			func(f *fake) { f.On("GET /access/permissions", data(`{"/vms":{"VM.Audit":1}}`)) }, "it has no Sys.Audit on /access", fault.Refused,
		},
		"a host that is down": {
			func(f *fake) { f.On("GET /nodes/pve1/qemu/101/pending", raw("595 No route to host", "")) }, "read what VM 101 refers to: ", fault.Failed,
		},
		"a host that is offline": {
			func(f *fake) { f.On("GET /nodes", data(`[{"node":"pve1","status":"offline"}]`)) },
			"Proxmox host pve1 is offline, so VM 101 can't be read", fault.Failed,
		},
		"a snapshot that can't be read": {
			func(f *fake) {
				f.On("GET /nodes/pve1/qemu/101/snapshot", data(`[{"name":"s"}]`))
				f.On("GET /nodes/pve1/qemu/101/snapshot/s/config", raw("500 snapshot 's' does not exist", ""))
			}, "snapshot 's' does not exist", fault.Failed,
		},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			seesAll(pve1)
			pve1.On("GET /cluster/resources?type=vm", data(seen))
			pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[]`))
			pve1.On("GET /nodes/pve1/qemu/101/snapshot", data(`[]`))
			tc.change(pve1)
			got, err := c.Uses(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || fault.KindOf(err) != tc.kind {
				t.Errorf("error is %v (%v), want %q in it; uses %v", err, fault.KindOf(err), tc.want, got)
			}
		})
	}
}

func TestShelf(t *testing.T) {
	t.Parallel()
	const volume = "DELETE /nodes/pve1/storage/isos/content/isos:iso%2Fa.iso"
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("GET /nodes", data(`[{"node":"pve2","status":"online"},{"node":"pve3","status":"offline"},{"node":"pve1","status":"unknown"}]`))
		pve1.On(isosPath, data(`[{"volid":"isos:iso/b.iso","size":7,"ctime":946684800},{"volid":"isos:iso/a.iso","size":"1048576"}]`), data(`[]`))
		pve1.On(volume, data(`"`+testUPID+`"`), func(w http.ResponseWriter, r *http.Request) { lost(w, r) }, raw("403 Permission check failed (/storage/isos, Datastore.Allocate)", ""))
		pve1.On(statusPath, stopped("OK"))
		pve1.On("GET /nodes/pve1/tasks?limit=500&source=all&typefilter=imgdel", data(`[]`))
		c := s.client(t, "pve1")
		online, offline, err := c.Nodes(t.Context())
		if diff := cmp.Diff([][]string{{"pve1", "pve2"}, {"pve3"}}, [][]string{online, offline}); diff != "" || err != nil {
			t.Errorf("nodes: %v (-want +got):\n%s", err, diff)
		}
		isos, err := c.ISOs(t.Context(), "pve1", "isos")
		a := images.StoredISO{Host: "pve1", Storage: "isos", Name: "a.iso", SizeBytes: 1 << 20}
		want := []images.StoredISO{a, {Host: "pve1", Storage: "isos", Name: "b.iso", SizeBytes: 7, Changed: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}}
		if diff := cmp.Diff(want, isos); diff != "" || err != nil {
			t.Errorf("ISOs: %v (-want +got):\n%s", err, diff)
		}
		for range 2 { // the second time the answer is lost, and the VM is gone
			if err := c.DeleteISO(t.Context(), a); err != nil {
				t.Error(err)
			}
		}
		if err := c.DeleteISO(t.Context(), a); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "delete a.iso on storage isos on pve1: ") {
			t.Errorf("without the privilege: %v", err)
		}
	})
}
