package contract

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestExchange exchanges the system of a node like a Talos node: everything else is
// unchanged, and its old system disk is parked.
func TestExchange(t *testing.T) {
	var chosen slice
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for name, b := range inOrder(belongingsOfAll()) {
			chosen.story(t, string(strategy)+"/"+name, 0, func(t *testing.T, s *server) {
				x := s.newNode(b)
				must(t, x.exchange(s.newClient(), strategy, "r1"))
				x.wantMachine(t, "afterwards", x.before.renewedBy("r1", exchange.DiskSerial("r1", x.node())))
				x.wantKept(t, "afterwards", x.before.Drives["scsi0"])
				s.intact(t)
			})
		}
	}
}

// TestExchangeAgain does so three times in a row, with one parking VM: the old system
// disks accumulate, and the last but one is restored.
func TestExchangeAgain(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		x, px := s.newNode(mixed()), s.newClient()
		var systems []driveIs
		for i, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			run := "r" + itoa(i+1)
			systems = append(systems, x.writeSystem("before "+run))
			must(t, x.exchange(px, strategy, run))
			x.wantKept(t, run, systems...)
		}
		third := x.writeSystem("before r3")
		must(t, x.exchange(px, cluster.Rollback, "r3"))
		want := x.before.markedBy("r3")
		want.Drives["scsi0"] = systems[1]
		x.wantMachine(t, "rolled back", want)
		x.wantKept(t, "rolled back", systems[0], third)
		s.intact(t)
	})
}

// writeSystem gives the system disk unique content in the simulator, which then protects
// it.
func (x *exchanged) writeSystem(bytes string) driveIs {
	x.s.t.Helper()
	if x.s.sim != nil {
		m := x.s.sim.world.Media(x.s.volid(x.id, "scsi0"), x.s.place.node)
		if m.Size() == 0 {
			m.Write([]byte(bytes))
			x.s.sim.world.Protect(world.Protected{Serial: bytes, Media: m})
		}
	}
	return x.s.machine(x.id).Drives["scsi0"]
}

// TestRollbackDisk rolls a node back to its previous system disk: the kept disk is the
// system disk again, with its options, and nothing else moves.
func TestRollbackDisk(t *testing.T) {
	var chosen slice
	for name, b := range inOrder(belongingsOfAll()) {
		chosen.story(t, name, 0, func(t *testing.T, s *server) {
			x, px := s.newNode(b), s.newClient()
			must(t, x.exchange(px, cluster.Recreate, "r1"))
			replacement := s.machine(x.id).Drives["scsi0"]
			must(t, x.exchange(px, cluster.Rollback, "r2"))
			x.wantMachine(t, "rolled back", x.before.markedBy("r2"))
			x.wantKept(t, "rolled back", replacement)
			s.intact(t)
		})
	}
}

// TestPutBack cancels an exchange when everything except closing the record is done: the
// VM is as before, and the new disk is parked as a cancelled one.
func TestPutBack(t *testing.T) {
	var chosen slice
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for name, b := range inOrder(belongingsOfAll()) {
			chosen.story(t, "after "+string(strategy)+"/"+name, 0, func(t *testing.T, s *server) {
				x := s.newNode(b)
				x.interrupt(t, mortal(s.newClient(), untilClosed), strategy)
				must(t, x.resume(s.newClient(), strategy, "r1", true))
				x.wantMachine(t, "put back", x.before)
				x.wantGivenUp(t, "put back", "r1", true)
				s.intact(t)
			})
		}
	}
}

// TestExchangeGrows: a larger system disk gets its size.
func TestExchangeGrows(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		x := s.newNode(mixed())
		r := x.process(s.newClient(), cluster.Recreate, "r1")
		r.SystemGiB = 3
		steps, err := r.Begin(t.Context(), false)
		must(t, err)
		must(t, s.carryOut(steps))
		want := x.before.renewedBy("r1", x.serial())
		system := want.Drives["scsi0"]
		system.Size = itoa(3 << 30)
		system.Options = slices.Clone(system.Options)
		system.Options[slices.Index(system.Options, "size=2G")] = "size=3G"
		want.Drives["scsi0"] = system
		x.wantMachine(t, "afterwards", want)
	})
}
