package contract

import (
	"net/http"
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/world"
)

// around is something that Proxmox stores for a VM outside of its configuration, or that
// not every token can write.
type around struct {
	needs   needs
	may     func(s *server)
	form    func(s *server) []string
	prepare func(s *server, x *exchanged)
	look    func(s *server, x *exchanged) any // must be the same before and afterwards
	now     func(m *machine)                  // the difference after a finished exchange
}

func arounds() map[string]around {
	return map[string]around{
		"a startup order": {
			may:  func(s *server) { s.holds("/", "Sys.Modify") },
			form: func(*server) []string { return []string{"startup=order=3,up=30"} },
		},
		"an ISO in the CD drive": {
			form: func(s *server) []string { return []string{"ide2=" + s.bootISO() + ",media=cdrom"} },
			now:  func(m *machine) { m.Config["ide2"] = "none,media=cdrom" },
		},
		"HA": {
			may: (*server).managesHA,
			prepare: func(s *server, x *exchanged) {
				if r := s.do(http.MethodPost, haResources, "sid=vm:"+itoa(x.id), "state=stopped", "max_restart=3"); r.Code != http.StatusOK {
					s.t.Fatalf("put VM %d under HA: %s", x.id, r.Status)
				}
			},
			look: func(s *server, x *exchanged) any {
				got := object(s.t, s.get(haResources+"/vm:"+itoa(x.id)))
				return []string{text(got["state"]), text(got["max_restart"])}
			},
		},
		"a rule of HA": {
			needs: simulated,
			may:   (*server).managesHA,
			prepare: func(s *server, x *exchanged) {
				s.sim.world.AddHA(world.HAResource{SID: "vm:" + itoa(x.id), State: "stopped"})
				s.sim.world.AddHARule(world.HARule{ID: "together", Type: "node-affinity", Resources: []string{"vm:" + itoa(x.id)}})
			},
			look: func(s *server, _ *exchanged) any { return s.sim.world.HARules() },
		},
		"a backup job": {
			needs: simulated,
			prepare: func(s *server, x *exchanged) {
				s.sim.world.AddBackupJob(world.BackupJob{ID: "backup-nightly", Schedule: "02:00", Storage: "local", VMIDs: []int{x.id}})
			},
			look: func(s *server, _ *exchanged) any { return s.get("/cluster/backup") },
		},
		"a firewall": {
			prepare: func(s *server, x *exchanged) { s.wall(x.id) },
			look:    func(s *server, x *exchanged) any { return s.firewall(x.id) },
		},
		"a mapped device": {
			needs: simulated,
			may:   func(s *server) { s.holds("/mapping/usb/dongle", "Mapping.Use") },
			form:  func(*server) []string { return []string{"usb0=mapping=dongle"} },
		},
	}
}

// TestExchangeAround: that is preserved too, whether the exchange is finished or
// cancelled.
func TestExchangeAround(t *testing.T) {
	long(t)
	var chosen slice
	for name, a := range inOrder(arounds()) {
		for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, false}} {
			chosen.story(t, name+"/"+u.String(), a.needs, func(t *testing.T, s *server) { a.try(t, s, u) })
		}
	}
}

func (a around) try(t *testing.T, s *server, u unfinished) {
	t.Helper()
	if a.may != nil {
		a.may(s)
	}
	var form []string
	if a.form != nil {
		form = a.form(s)
	}
	x := s.newPlainNode(form...)
	if a.prepare != nil {
		a.prepare(s, x)
	}
	look := func() any {
		if a.look == nil {
			return nil
		}
		return a.look(s, x)
	}
	x.before = s.machine(x.id)
	before, want := look(), x.before.clone()
	x.interrupt(t, mortal(s.newClient(), untilClosed), u.strategy)
	if !u.putBack {
		want = want.renewedBy("r1", x.serial())
		if a.now != nil {
			a.now(&want)
		}
	}
	must(t, x.resume(s.newClient(), u.strategy, "r1", u.putBack))
	x.wantMachine(t, "afterwards", want)
	same(t, before, look())
	s.intact(t)
}

// serial is that of the present system disk.
func (x *exchanged) serial() string {
	x.s.t.Helper()
	d, err := cluster.ParseDisk("scsi0", x.s.config(x.id)["scsi0"])
	must(x.s.t, err)
	return d.Option("serial")
}

// given says whether a form sets a key.
func given(form []string, key string) bool {
	return slices.ContainsFunc(form, func(f string) bool { return len(f) > len(key) && f[:len(key)+1] == key+"=" })
}
