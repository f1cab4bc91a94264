package schedules

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/record"
)

// TestSentAgain: a change may be sent again after a read of the VM.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	read := func(path string, params map[string]string) record.Call {
		return record.Call{Proto: "proxmox", Method: "GET", Path: "/api2/json" + path, Params: params}
	}
	create := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu", Params: map[string]string{"vmid": "9001"}, Mutation: true}
	change := record.Call{Proto: "proxmox", Method: "POST", Path: "/api2/json/nodes/pve1/qemu/9001/config", Params: map[string]string{"memory": "1"}, Mutation: true}
	for name, c := range map[string]struct {
		change  record.Call
		between record.Call
		excused bool
	}{
		"a task":               {create, read("/nodes/pve1/tasks/UPID:x/status", nil), false},
		"a storage":            {create, read("/nodes/pve1/storage/fast/content", nil), false},
		"the list of storages": {create, read("/cluster/resources?type=storage", map[string]string{"type": "storage"}), false},
		"the list of VMs":      {create, read("/cluster/resources?type=vm", map[string]string{"type": "vm"}), true},
		"the list of all":      {create, read("/cluster/resources", nil), true},
		"the VM":               {change, read("/nodes/pve1/qemu/9001/config", nil), true},
		"another VM":           {change, read("/nodes/pve1/qemu/9002/config", nil), false},
		"its number":           {create, read("/nodes/pve1/qemu/9001/config", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &play{problems: map[string]bool{}, others: others{sent: map[string]int{}, looked: map[string]int{}, changed: map[string]int{}}}
			for _, call := range []record.Call{c.change, c.between, c.change} {
				p.lookAtCall(call)
			}
			if excused := len(p.res.Problems) == 0; excused != c.excused {
				t.Errorf("excused %t: %q", excused, p.res.Problems)
			}
		})
	}
}
