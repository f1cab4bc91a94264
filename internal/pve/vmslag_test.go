package pve

import (
	"testing"
	"testing/synctest"
)

// TestVMsOfAListThatIsBehind: the list shows a VM as being created, but its host
// shows it as complete. VMs completed before it may be missing from the list.
func TestVMsOfAListThatIsBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		const ours = `{"type":"qemu","vmid":9000,"node":"pve1","status":"unknown"`
		pve1.On(listPath, data(`[`+ours+`,"lock":"create"}]`),
			data(`[`+ours+`},{"type":"qemu","vmid":9100,"node":"pve1","status":"unknown","lock":"create"}]`),
			data(`[`+ours+`},{"type":"qemu","vmid":9100,"node":"pve1","status":"unknown"}]`))
		pve1.On("GET /nodes", data(`[{"node":"pve1","status":"online"}]`))
		for _, id := range []string{"9000", "9100"} {
			pve1.On("GET /nodes/pve1/qemu/"+id+"/pending", data(`[{"key":"digest","value":"d"},{"key":"name","value":"recast-claim"}]`))
		}
		vms, err := s.client(t, "pve1").VMs(t.Context())
		if err != nil || len(vms) != 2 || vms[0].ID != 9000 || vms[1].ID != 9100 {
			t.Errorf("VMs %v, %v", vms, err)
		}
	})
}
