package pveapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	unknown  = "property is not defined in schema and the schema does not allow additional properties"
	mismatch = "500 checksum mismatch (file change by other user?)"
	bad      = "400 Parameter verification failed."
)

// refusal is a request and the status line, with its per-parameter messages, that Proxmox VE 9.2 answers.
type refusal struct {
	set    func(*testing.T, *world.World)
	method string
	path   string
	form   []string
	want   string
	errors map[string]string
}

func refuse(t *testing.T, tests map[string]refusal) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				if test.set != nil {
					test.set(t, l.world)
				}
				got := l.do(test.method, test.path, test.form...)
				_, message, _ := strings.Cut(test.want, " ")
				want := reply{Status: test.want, Message: message + "\n", Errors: test.errors}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	refuse(t, map[string]refusal{
		"no such VM":          {method: "GET", path: "/nodes/pve1/qemu/9999/config", want: "500 Configuration file 'nodes/pve1/qemu-server/9999.conf' does not exist"},
		"VM of other host":    {method: "GET", path: "/nodes/pve2/qemu/9011/config", want: "500 Configuration file 'nodes/pve2/qemu-server/9011.conf' does not exist"},
		"no such path":        {method: "GET", path: "/nosuch", want: "501 Method 'GET /nosuch' not implemented"},
		"no such method":      {method: "PUT", path: "/version", want: "501 Method 'PUT /version' not implemented"},
		"no such node":        {method: "GET", path: "/nodes/nope/status", want: "500 hostname lookup 'nope' failed - failed to get address info for: nope: Name or service not known"},
		"unknown parameter":   {method: "GET", path: "/cluster/resources", form: []string{"nosuch=1"}, want: bad, errors: map[string]string{"nosuch": unknown}},
		"unknown option":      {method: "PUT", path: vm + "/config", form: []string{"nosuch=1"}, want: bad, errors: map[string]string{"nosuch": unknown}},
		"empty PUT":           {method: "PUT", path: vm + "/config", want: "500 no options specified"},
		"wrong digest":        {method: "PUT", path: vm + "/config", form: []string{"memory=1024", "digest=00"}, want: mismatch},
		"wrong digest POST":   {method: "POST", path: vm + "/config", form: []string{"memory=1024", "digest=00"}, want: mismatch},
		"delete unknown":      {method: "PUT", path: vm + "/config", form: []string{"delete=nosuch"}, want: bad, errors: map[string]string{"delete": "unknown option 'nosuch'"}},
		"missing volume":      {method: "PUT", path: vm + "/config", form: []string{"scsi5=fast:9011/vm-9011-disk-7.raw"}, want: "500 volume 'fast:9011/vm-9011-disk-7.raw' does not exist"},
		"skiplock":            {method: "PUT", path: vm + "/config", form: []string{"memory=1", "skiplock=1"}, want: bad, errors: map[string]string{"skiplock": "Only root may use this option."}},
		"agent of stopped VM": {method: "GET", path: vm + "/agent/network-get-interfaces", want: "500 VM 9011 is not running"},
		"no such task":        {method: "GET", path: "/nodes/pve1/tasks/UPID:pve1:0:0:0:qmstart:1:x@pve:/status", want: bad, errors: map[string]string{"upid": "no such task"}},
		"taken nextid":        {method: "GET", path: "/cluster/nextid", form: []string{"vmid=9011"}, want: bad, errors: map[string]string{"vmid": "VM 9011 already exists"}},
		"no such storage":     {method: "GET", path: "/nodes/pve1/storage/nosuch/content", want: "500 storage 'nosuch' does not exist"},
		"delete an ISO":       {method: "DELETE", path: "/nodes/pve1/storage/isos/content/isos:iso%2Fboot.iso", want: "403 Permission check failed (/storage/isos, Datastore.Allocate)"},
	})
}

func TestRefusedCreates(t *testing.T) {
	t.Parallel()
	refuse(t, map[string]refusal{
		"create unknown":  {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "foo=1"}, want: bad, errors: map[string]string{"foo": unknown}},
		"create, no vmid": {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"create taken":    {method: "POST", path: "/nodes/pve2/qemu", form: []string{"vmid=9011"}, want: "500 unable to create VM 9011 - VM 9011 already exists on node 'pve1'"},
		"create bad name": {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "name=a_b"}, want: bad, errors: map[string]string{"name": "invalid format - value does not look like a valid DNS name\n"}},
		"create no pool":  {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "pool=nopool"}, want: "403 Permission check failed (pool 'nopool' does not exist)"},
		"create, vmgenid": {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "vmgenid=1"}, want: "500 only root can set 'vmgenid' config"},
		"create, startup": {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "startup=order=1"}, want: "403 Permission check failed (/, Sys.Modify)"},
	})
}

func TestRefusedInThisState(t *testing.T) {
	t.Parallel()
	refuse(t, map[string]refusal{
		"locked": {
			set:    func(_ *testing.T, w *world.World) { w.SetLock(9011, "backup") },
			method: "PUT", path: vm + "/config", form: []string{"memory=1024"}, want: "500 VM is locked (backup)",
		},
		"delete running": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "DELETE", path: vm, want: "500 VM 9011 is running - destroy failed",
		},
		"delete HA": {
			set:    func(_ *testing.T, w *world.World) { w.AddHA(world.HAResource{SID: "vm:9011", State: "started"}) },
			method: "DELETE", path: vm, want: "500 unable to remove VM 9011 - used in HA resources and purge parameter not set.",
		},
		"create without quorum": {
			set:    func(_ *testing.T, w *world.World) { w.SetQuorum(false) },
			method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012"}, want: "500 cluster not ready - no quorum?",
		},
		"unplug boot disk": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "PUT", path: vm + "/config", form: []string{"delete=scsi0"}, want: bad, errors: map[string]string{"scsi0": "hotplug problem - can't unplug bootdisk 'scsi0'\n"},
		},
		"agent not running": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "GET", path: vm + "/agent/network-get-interfaces", want: "500 QEMU guest agent is not running",
		},
		"switched failure": {
			set:    func(_ *testing.T, w *world.World) { w.FailNext("GET /nodes/pve1/qemu", "boom") },
			method: "GET", path: vm + "/config", want: "500 boom",
		},
	})
}

func TestRefusedMoves(t *testing.T) {
	t.Parallel()
	refuse(t, map[string]refusal{
		"move to other host": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve2", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Both VMs need to be on the same node (pve1 != pve2)",
		},
		"move without disk": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi7", "target-vmid=9090"}, want: "500 Disk 'scsi7' for VM '9011' does not exist",
		},
		"move a CD": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=ide2", "target-vmid=9090"}, want: "500 CD drive contents can't be moved to another VM",
		},
		"move to taken key": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, map[string]string{"scsi1": "fast:1"}, nil))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Target disk key 'scsi1' is already in use for VM '9090'",
		},
		"move wrong digest": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090", "digest=00"},
			want: "500 VM 9011: detected modified configuration - file changed by other user? Try again.",
		},
		"move while running": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, nil, nil))
				must(t, w.PowerOn(9011))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"},
			want: "500 Cannot move disk to another VM while the source VM is running - detach first",
		},
		"move with snapshot": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, nil, nil))
				must(t, w.AddSnapshot(9011, world.Snapshot{Name: "before"}))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Can't move disk used by a snapshot to another VM",
		},
	})
}
