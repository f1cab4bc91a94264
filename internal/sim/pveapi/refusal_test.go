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
		"VM of other host":    {method: "GET", path: "/nodes/pve2/qemu/9011/config", want: "500 Configuration file 'nodes/pve2/qemu-server/9011.conf' does not exist"},
		"create, no vmid":     {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"no such path":        {method: "GET", path: "/nosuch", want: "501 Method 'GET /nosuch' not implemented"},
		"no such method":      {method: "PUT", path: "/version", want: "501 Method 'PUT /version' not implemented"},
		"no such node":        {method: "GET", path: "/nodes/nope/status", want: "500 hostname lookup 'nope' failed - failed to get address info for: nope: Name or service not known"},
		"unknown parameter":   {method: "GET", path: "/cluster/resources", form: []string{"nosuch=1"}, want: bad, errors: map[string]string{"nosuch": unknown}},
		"agent of stopped VM": {method: "GET", path: vm + "/agent/network-get-interfaces", want: "500 VM 9011 is not running"},
		"no such task":        {method: "GET", path: "/nodes/pve1/tasks/UPID:pve1:00000001:00000001:00000001:qmstart:1:x@pve:/status", want: bad, errors: map[string]string{"upid": "no such task"}},
		"taken nextid":        {method: "GET", path: "/cluster/nextid", form: []string{"vmid=9011"}, want: bad, errors: map[string]string{"vmid": "VM 9011 already exists"}},
		"no such storage":     {method: "GET", path: "/nodes/pve1/storage/nosuch/content", want: "500 storage 'nosuch' does not exist"},
		"delete an ISO":       {method: "DELETE", path: "/nodes/pve1/storage/isos/content/isos:iso%2Fboot.iso", want: "403 Permission check failed (/storage/isos, Datastore.Allocate)"},
	})
}

func TestRefusedInThisState(t *testing.T) {
	t.Parallel()
	refuse(t, map[string]refusal{
		"delete HA": {
			set:    func(_ *testing.T, w *world.World) { w.AddHA(world.HAResource{SID: "vm:9011", State: "started"}) },
			method: "DELETE", path: vm, want: "500 unable to remove VM 9011 - used in HA resources and purge parameter not set.",
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
