package contract

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/world"
)

// foreign is another person's change of a node's VM or its parking VM before its exchange
// continues: that is refused, without a loss.
type foreign struct {
	needs    needs
	strategy cluster.Strategy // "": Recreate
	form     func(s *server) []string
	do       func(s *server, x *exchanged)
	want     string // %d is the node's VM, %[2]d its parking VM
	failed   bool   // Proxmox's own refusal, which recast passes on
	undo     func(s *server, x *exchanged)
}

func foreignHands() map[string]foreign {
	set := func(form ...string) func(*server, *exchanged) {
		return func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), form...) }
	}
	return map[string]foreign{
		"the VM runs": {
			do: func(s *server, x *exchanged) { s.start(x.id) }, want: "is running",
			undo: func(s *server, x *exchanged) { s.stop(x.id) },
		},
		"the VM runs, reimage": {
			strategy: cluster.Reimage, do: func(s *server, x *exchanged) { s.start(x.id) }, want: "is running",
			undo: func(s *server, x *exchanged) { s.stop(x.id) },
		},
		"the VM has another UUID": {
			do: set("smbios1=uuid=" + newUUID()), want: "it is not the VM that was planned",
			undo: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "smbios1="+x.before.Config["smbios1"]) },
		},
		"the VM has another name": {
			do: set("name=somebody-else"), want: "is not the VM that was planned",
			undo: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "name="+x.before.Config["name"]) },
		},
		"a setting that the new VM would not have": {
			do: set("memory=80"), want: "was changed by someone else since it was remembered (memory is another one)",
			undo: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "memory="+x.before.Config["memory"]) },
		},
		"a disk of its own that is new": {
			do: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "scsi5="+s.disk()) }, want: "scsi5",
			undo: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "delete=scsi5", "force=1") },
		},
		"another VM's disk that is new": {
			do: func(s *server, x *exchanged) {
				s.put(s.vm(x.id, "config"), "scsi5="+s.volid(s.newVM("scsi0="+s.disk()), "scsi0"))
			},
			want: "scsi5",
			undo: func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "delete=scsi5") },
		},
		"a snapshot": {
			form: func(s *server) []string {
				disk := s.disk()
				if s.storageConfig(s.place.storage)["path"] != nil {
					disk += ",format=qcow2" // raw files have no snapshots
				}
				return []string{"scsi0=" + disk + ",serial=system", "scsi1=" + disk, "scsi2=" + disk}
			},
			do: func(s *server, x *exchanged) {
				s.holds("/vms", "VM.Snapshot")
				if e := s.task(http.MethodPost, s.vm(x.id, "snapshot"), "snapname=before"); e.Exit != "OK" {
					s.skipf("needs PVE_STORAGE to have snapshots: %s", e.Exit)
				}
			},
			want: "Can't move disk used by a snapshot to another VM", failed: true,
			undo: func(s *server, x *exchanged) { s.taskOK(http.MethodDelete, s.vm(x.id, "snapshot/before")) },
		},
		"a lock": {
			needs: simulated, do: func(s *server, x *exchanged) { s.sim.world.SetLock(x.id, "suspended") }, want: "suspended", failed: true,
			undo: func(s *server, x *exchanged) { s.sim.world.SetLock(x.id, "") },
		},
	}
}

// foreignRecords are another person's changes of the parking VM.
func foreignRecords() map[string]foreign {
	rewrite := func(from, to string) func(*server, *exchanged) {
		return func(s *server, x *exchanged) {
			s.put(s.vm(x.park, "config"), "description="+strings.ReplaceAll(s.config(x.park)["description"], from, to))
		}
	}
	return map[string]foreign{
		"a parking VM that is none any more": {
			do:   func(s *server, x *exchanged) { s.put(s.vm(x.park, "config"), "description="+marker) },
			want: "VM %[2]d",
		},
		"the record of another run": {
			do: rewrite(`"run":"r1"`, `"run":"r9"`), want: "another run was here", undo: rewrite(`"run":"r9"`, `"run":"r1"`),
		},
		"a record that can't be read": {
			do: rewrite(`{"version"`, `{version"`), want: "record in its description can't be read", undo: rewrite(`{version"`, `{"version"`),
		},
	}
}

// TestExchangeRefused: another person's change stops the exchange before anything is lost;
// once it is reverted, the exchange continues.
func TestExchangeRefused(t *testing.T) {
	var chosen slice
	all := foreignHands()
	maps.Copy(all, foreignRecords())
	for name, f := range inOrder(all) {
		chosen.story(t, name, f.needs, func(t *testing.T, s *server) { f.try(t, s) })
	}
}

func (f foreign) try(t *testing.T, s *server) {
	t.Helper()
	var x *exchanged
	if f.form == nil {
		x = s.newPlainNode()
	} else {
		x = s.makeNode(nil, s.blank, f.form(s)...)
	}
	strategy := f.strategy
	if strategy == "" {
		strategy = cluster.Recreate
	}
	px := s.newClient()
	steps, err := x.open(px, strategy, "r1")
	must(t, err)
	f.do(s, x)
	err = s.carryOut(steps)
	want := strings.NewReplacer("%d", itoa(x.id), "%[2]d", itoa(x.park)).Replace(f.want)
	if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Refused && !f.failed {
		t.Fatalf("kind %d: %v; want %q", fault.KindOf(err), err, want)
	}
	x.wantAllThere(t)
	if f.undo == nil {
		return
	}
	f.undo(s, x)
	must(t, x.resume(s.newClient(), strategy, "r1", false))
	x.wantMachine(t, "afterwards", x.before.renewedBy("r1", x.serial()))
	x.wantKept(t, "afterwards", x.before.Drives["scsi0"])
	s.intact(t)
}

// wantAllThere requires every disk of the node in the configuration of its VM, its parking
// VM or its holder.
func (x *exchanged) wantAllThere(t *testing.T) {
	t.Helper()
	for key, d := range x.before.Drives {
		found := false
		for _, id := range []int{x.id, x.park, x.holder} {
			if id == 0 || x.s.do(http.MethodGet, x.s.vm(id, "config")).Code != http.StatusOK {
				continue
			}
			for _, now := range x.s.machine(id).Drives {
				found = found || now.Size == d.Size && now.Bytes == d.Bytes && now.Format == d.Format
			}
		}
		if !found {
			t.Errorf("%s (%+v) is in no configuration", key, d)
		}
	}
	x.s.intact(t)
}

// TestExchangeNotOpened: what prevents an exchange from beginning; nothing is changed at
// all.
func TestExchangeNotOpened(t *testing.T) {
	tests := map[string]struct {
		needs   needs
		prepare func(s *server, x *exchanged)
		want    string
	}{
		"another exchange of the node is open": {
			prepare: func(s *server, x *exchanged) {
				if _, err := x.open(s.newClient(), cluster.Reimage, "r0"); err != nil {
					s.t.Fatal(err)
				}
			},
			want: "has an open record of run r0",
		},
		"its parking VM is on another node": {
			needs: secondNode,
			prepare: func(s *server, x *exchanged) {
				text, err := parking.Record{Cluster: exchangeCluster, Node: x.node(), Run: "r0", VMID: cluster.VMID(x.id)}.Description()
				must(s.t, err)
				s.taskOK(http.MethodPost, "/nodes/"+s.place.node2+"/qemu", marked(x.park, "description="+text)...)
			},
			want: "is not on",
		},
		"a setting that only root can give a new VM": {
			needs: simulated,
			prepare: func(s *server, x *exchanged) {
				change := world.ChangeRequest{ID: x.id, Set: map[string]string{"args": "-no-hpet"}}
				must(s.t, s.sim.world.SetConfig("root@pam", s.place.node, change))
			},
			want: "has args, which only root@pam may set",
		},
		"every VMID for a parking VM is taken": {
			prepare: func(s *server, x *exchanged) {
				s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(x.park)...)
			},
			want: "no VMID is free for the parking VM",
		},
		"a disk that belongs to no VM": {
			needs: simulated,
			prepare: func(s *server, x *exchanged) {
				s.sim.world.AddStorage(world.Storage{ID: "san", Type: "iscsi", Content: []string{"images"}})
				must(s.t, s.sim.world.AddLUN("san", s.place.node, "0.0.0.scsi-1", 1<<30, world.NewMedia(nil)))
				change := world.ChangeRequest{ID: x.id, Set: map[string]string{"scsi7": "san:0.0.0.scsi-1"}}
				must(s.t, s.sim.world.SetConfig("root@pam", s.place.node, change))
			},
			want: "scsi7",
		},
	}
	for name, test := range tests {
		story(t, name, test.needs, func(t *testing.T, s *server) {
			x := s.newPlainNode()
			test.prepare(s, x)
			before, parked := fmt.Sprint(s.config(x.id)), fmt.Sprint(s.do(http.MethodGet, s.vm(x.park, "config")).Data)
			_, err := x.open(s.newClient(), cluster.Recreate, "r1")
			if err == nil || fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), test.want) {
				t.Errorf("kind %d: %v; want %q", fault.KindOf(err), err, test.want)
			}
			if now := fmt.Sprint(s.config(x.id)); now != before {
				t.Errorf("the VM was changed: %s, was %s", now, before)
			}
			if now := fmt.Sprint(s.do(http.MethodGet, s.vm(x.park, "config")).Data); now != parked {
				t.Errorf("the parking VM was changed: %s, was %s", now, parked)
			}
		})
	}
}
