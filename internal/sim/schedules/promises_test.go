package schedules

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestAFaultExcusesNothingBefore: if etcd loses its majority before any fault affects it,
// recast is to blame.
func TestAFaultExcusesNothingBefore(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*play, *struck){
		"at a time": func(p *play, s *struck) { p.begin(s) },
		"at a call": func(p *play, s *struck) {
			s.kind.before = func(*play, *struck) error { return nil }
			_ = p.before(record.Call{Proto: "proxmox", Method: "PUT", Mutation: true}) // no fault drops it
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "at a call" {
				t.Skip("long: bringing up another lab")
			}
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, Case{ControlPlanes: 3, Hosts: 1, Changes: []string{changePatch}})
				for _, n := range p.lab.Nodes[:2] {
					if err := p.lab.BreakEtcd(n.Name, talosapi.EtcdFault{Down: true}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				s := &struck{Fault: Fault{Name: "off", Where: 0, Call: 1}, kind: kind{name: "off", etcd: true, after: func(*play, *struck) {}}}
				p.list = []*struck{s}
				begin(p, s)
				if !s.begun || len(p.res.Problems) == 0 {
					t.Errorf("begun %t, problems %q", s.begun, p.res.Problems)
				}
			})
		})
	}
}
