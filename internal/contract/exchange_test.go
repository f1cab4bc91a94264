package contract

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim/must"
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
				must.Do(t, x.exchange(s.newClient(), strategy, "r1"))
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
			must.Do(t, x.exchange(px, strategy, run))
			x.wantKept(t, run, systems...)
		}
		third := x.writeSystem("before r3")
		must.Do(t, x.exchange(px, cluster.Rollback, "r3"))
		want := x.before.markedBy("r3")
		want.Drives["scsi0"] = systems[1]
		x.wantMachine(t, "rolled back", want)
		x.wantKept(t, "rolled back", systems[0], third)
		s.intact(t)
	})
}

// writeSystem gives the system disk unique content in the simulator, which then protects it.
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
			must.Do(t, x.exchange(px, cluster.Recreate, "r1"))
			replacement := s.machine(x.id).Drives["scsi0"]
			must.Do(t, x.exchange(px, cluster.Rollback, "r2"))
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
				must.Do(t, x.resume(s.newClient(), strategy, "r1", true))
				x.wantMachine(t, "put back", x.before)
				x.wantGivenUp(t, "put back", "r1", true)
				s.intact(t)
			})
		}
	}
}

func TestExchangeGrows(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		x := s.newNode(mixed())
		r := x.process(s.newClient(), cluster.Recreate, "r1")
		r.SystemGiB = 3
		steps := must.Get(r.Begin(t.Context(), false))(t)
		must.Do(t, s.carryOut(steps))
		want := x.before.renewedBy("r1", x.serial())
		system := want.Drives["scsi0"]
		system.Size = itoa(3 << 30)
		system.Options = slices.Clone(system.Options)
		system.Options[slices.Index(system.Options, "size=2G")] = "size=3G"
		want.Drives["scsi0"] = system
		x.wantMachine(t, "afterwards", want)
	})
}

// around is something that Proxmox stores for a VM outside of its configuration, or that not every token can write.
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
				r := s.do(http.MethodPost, haResources, "sid=vm:"+itoa(x.id), "state=stopped", "max_restart=3")
				must.Be(s.t, r.Code == http.StatusOK, "put VM %d under HA: %s", x.id, r.Status)
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

// TestExchangeAround: that is preserved too, whether the exchange is finished or cancelled.
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
	must.Do(t, x.resume(s.newClient(), u.strategy, "r1", u.putBack))
	x.wantMachine(t, "afterwards", want)
	same(t, before, look())
	s.intact(t)
}

func (x *exchanged) serial() string {
	x.s.t.Helper()
	d := must.Get(cluster.ParseDisk("scsi0", x.s.config(x.id)["scsi0"]))(x.s.t)
	return d.Option("serial")
}

func given(form []string, key string) bool {
	return slices.ContainsFunc(form, func(f string) bool { return len(f) > len(key) && f[:len(key)+1] == key+"=" })
}

// TestExchangeMinimal exchanges the system of a node with a token that has exactly the
// permissions in permissions.md for the strategy.
func TestExchangeMinimal(t *testing.T) {
	var chosen slice
	for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, false}, {cluster.Reimage, true}} {
		chosen.story(t, u.String(), simulated, func(t *testing.T, s *server) {
			x, px := s.newNode(mixed()), s.minimal(string(u.strategy))
			x.interrupt(t, mortal(px, untilClosed), u.strategy)
			must.Do(t, x.resume(px, u.strategy, "r1", u.putBack))
			if err := s.client.Confirm(t.Context(), cluster.VMID(x.park)); !errors.Is(err, cluster.ErrNotFound) { // another token made it
				must.Do(t, err)
			}
			u.check(t, x, u.putBack)
		})
	}
}

// TestWhoMadeAParkingVM: the log of tasks says who created a VM, and the VM when it was created (pve-manager,
// API2/Tasks.pm; qemu-server, MetaInfo.pm).
func TestWhoMadeAParkingVM(t *testing.T) {
	story(t, "by its task", 0, func(t *testing.T, s *server) {
		x := s.newPlainNode()
		text := must.Get(parking.Record{Cluster: exchangeCluster, Node: x.node(), Run: "r0", VMID: cluster.VMID(x.id)}.Description())(t)
		name := "name=" + cluster.ParkingName(x.node())
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(x.park, name, "description="+text)...)
		read := func(px *pve.Client) cluster.VM { return must.Get(px.VMConfig(t.Context(), cluster.VMID(x.park)))(t) }
		must.Equal(t, "who made it", "", read(s.newClient()).NotOurs)
		must.Equal(t, "status", http.StatusOK, s.do(http.MethodPut, s.vm(x.park, "config"), "net0=virtio").Code)
		must.Hold(t, read(s.newClient()).NotOurs != "", "with a network card it is believed")
	})
	story(t, "by another", simulated, func(t *testing.T, s *server) {
		x := s.newPlainNode()
		must.Do(t, x.exchange(s.minimal(string(cluster.Recreate)), cluster.Recreate, "r1"))
		read := func(px *pve.Client) string {
			return must.Get(px.VMConfig(t.Context(), cluster.VMID(x.park)))(t).NotOurs
		}
		px := s.newClient()
		must.Hold(t, read(px) != "", "a VM that another user has created is believed")
		must.Do(t, px.Confirm(t.Context(), cluster.VMID(x.park)))
		must.Equal(t, "confirmed", "", read(px))
	})
}

// minimal is a client of a token created with the commands of permissions.md.
func (s *server) minimal(strategy string) *pve.Client {
	s.t.Helper()
	const id = "recast@pve!roll"
	s.sim.world.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	commands := documented(strategy)
	must.Be(s.t, len(commands) >= 4, "permissions.md shows only %v for %s", commands, strategy)
	for _, g := range commands {
		path := g.path
		if path == "/storage/isos" { // it represents those of images.iso.storage
			path = "/storage/" + s.place.isoStorage
		}
		s.sim.world.AddRole(g.role, g.privileges...)
		for _, who := range []string{"recast@pve", id} {
			s.sim.world.Grant(world.ACL{Path: path, Who: who, Role: g.role, Propagate: true})
		}
	}
	o := s.trusting()
	o.Token = cluster.Secret(id + "=" + secret)
	return s.connect(o)
}

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
	back := func(key string) func(*server, *exchanged) {
		return func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), key+"="+x.before.Config[key]) }
	}
	plug := func(volume func(s *server) string) func(*server, *exchanged) {
		return func(s *server, x *exchanged) { s.put(s.vm(x.id, "config"), "scsi5="+volume(s)) }
	}
	start := func(s *server, x *exchanged) { s.start(x.id) }
	stop := func(s *server, x *exchanged) { s.stop(x.id) }
	others := func(s *server) string { return s.volid(s.newVM("scsi0="+s.disk()), "scsi0") }
	const changed = "was changed by someone else since it was remembered (memory was changed)"
	return map[string]foreign{
		"the VM runs":                              {do: start, want: "is running", undo: stop},
		"the VM runs, reimage":                     {strategy: cluster.Reimage, do: start, want: "is running", undo: stop},
		"the VM has another UUID":                  {do: set("smbios1=uuid=" + newUUID()), want: "it is not the VM that was planned", undo: back("smbios1")},
		"the VM has another name":                  {do: set("name=somebody-else"), want: "is not the VM that was planned", undo: back("name")},
		"a setting that the new VM would not have": {do: set("memory=80"), want: changed, undo: back("memory")},
		"a disk of its own that is new":            {do: plug((*server).disk), want: "scsi5", undo: set("delete=scsi5", "force=1")},
		"another VM's disk that is new":            {do: plug(others), want: "scsi5", undo: set("delete=scsi5")},
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
	must.Do(t, err)
	f.do(s, x)
	err = s.carryOut(steps)
	want := strings.NewReplacer("%d", itoa(x.id), "%[2]d", itoa(x.park)).Replace(f.want)
	must.Be(t, err != nil && strings.Contains(err.Error(), want) && (fault.KindOf(err) == fault.Refused || f.failed),
		"kind %d: %v; want %q", fault.KindOf(err), err, want)
	x.wantAllThere(t)
	if f.undo == nil {
		return
	}
	f.undo(s, x)
	must.Do(t, x.resume(s.newClient(), strategy, "r1", false))
	x.wantMachine(t, "afterwards", x.before.renewedBy("r1", x.serial()))
	x.wantKept(t, "afterwards", x.before.Drives["scsi0"])
	s.intact(t)
}

// wantAllThere requires every disk of the node in the configuration of its VM, its parking VM or its holder.
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
		must.Hold(t, found, "%s (%+v) is in no configuration", key, d)
	}
	x.s.intact(t)
}

// TestExchangeNotOpened: what prevents an exchange from beginning; nothing is changed at all.
func TestExchangeNotOpened(t *testing.T) {
	asRoot := func(s *server, x *exchanged, set map[string]string) {
		must.Do(s.t, s.sim.world.SetConfig("root@pam", s.place.node, world.ChangeRequest{ID: x.id, Set: set}))
	}
	tests := map[string]struct {
		needs   needs
		prepare func(s *server, x *exchanged)
		want    string
	}{
		"another exchange of the node is open": {
			prepare: func(s *server, x *exchanged) {
				must.Do(s.t, must.Err(x.open(s.newClient(), cluster.Reimage, "r0")))
			},
			want: "has an open record of run r0",
		},
		"its parking VM is on another node": {
			needs: secondNode,
			prepare: func(s *server, x *exchanged) {
				text := must.Get(parking.Record{Cluster: exchangeCluster, Node: x.node(), Run: "r0", VMID: cluster.VMID(x.id)}.Description())(s.t)
				s.taskOK(http.MethodPost, "/nodes/"+s.place.node2+"/qemu", marked(x.park, "name="+cluster.ParkingName(x.node()), "description="+text)...)
			},
			want: "is not on",
		},
		"a setting that only root can give a new VM": {
			needs: simulated, want: "has args, which only root@pam may set",
			prepare: func(s *server, x *exchanged) { asRoot(s, x, map[string]string{"args": "-no-hpet"}) },
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
				must.Do(s.t, s.sim.world.AddLUN("san", s.place.node, "0.0.0.scsi-1", 1<<30, world.NewMedia(nil)))
				asRoot(s, x, map[string]string{"scsi7": "san:0.0.0.scsi-1"})
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
			must.Hold(t, err != nil && fault.KindOf(err) == fault.Refused && strings.Contains(err.Error(), test.want),
				"kind %d: %v; want %q", fault.KindOf(err), err, test.want)
			same(t, before, fmt.Sprint(s.config(x.id)))
			same(t, parked, fmt.Sprint(s.do(http.MethodGet, s.vm(x.park, "config")).Data))
		})
	}
}

// unfinished is an interrupted exchange, and how it is resumed.
type unfinished struct {
	strategy cluster.Strategy
	putBack  bool
}

func (u unfinished) String() string {
	if u.putBack {
		return string(u.strategy) + "/given up"
	}
	return string(u.strategy) + "/finished"
}

func unfinishedOnes() []unfinished {
	return []unfinished{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, false}, {cluster.Reimage, true}, {cluster.Rollback, false}}
}

// TestExchangeResume kills an exchange after each of its changes. Another process, which
// only has Proxmox's state, finishes or cancels it.
func TestExchangeResume(t *testing.T) {
	long(t)
	for i, u := range unfinishedOnes() {
		t.Run(u.String(), func(t *testing.T) {
			n, first, each := u.changes(t), 0, 1
			if _, isReal := realPlace(t); isReal { // every third takes minutes already
				first, each = i%3, 3
			}
			var chosen slice
			for k := first; k < n; k += each {
				chosen.story(t, fmt.Sprintf("after %d of %d changes", k, n), 0, func(t *testing.T, s *server) { u.killed(t, s, after(k)) })
			}
		})
	}
}

// changes counts the changes of an undisturbed exchange.
func (u unfinished) changes(t *testing.T) (n int) {
	t.Helper()
	if _, isReal := realPlace(t); !isReal {
		return u.simulate(t, u.count)
	}
	story(t, "undisturbed", 0, func(t *testing.T, s *server) { n = u.count(t, s) })
	return n
}

// simulate returns a count made in the simulator. It makes the count at once, while cases given to run begin only after
// this test has ended. A real server is not needed for cases that can't run on it.
func (unfinished) simulate(t *testing.T, count func(t *testing.T, s *server) int) (n int) {
	t.Helper()
	if _, isReal := realPlace(t); isReal {
		run(t, simulated, nil)
	}
	synctest.Test(t, func(t *testing.T) { n = count(t, newSimulated(t)) })
	return n
}

func (u unfinished) count(t *testing.T, s *server) int {
	t.Helper()
	x, px := u.node(t, s), mortal(s.newClient(), immortal)
	must.Do(t, x.exchange(px, u.strategy, "r1"))
	u.check(t, x, false)
	return px.done
}

// node is one to be exchanged; for a rollback it was exchanged once before.
func (u unfinished) node(t *testing.T, s *server) *exchanged {
	t.Helper()
	x := s.newPlainNode()
	if u.strategy != cluster.Rollback {
		return x
	}
	must.Do(t, x.exchange(s.newClient(), cluster.Reimage, "r0"))
	return x
}

// killed ends an exchange by lives, and another process resumes it.
func (u unfinished) killed(t *testing.T, s *server, lives func(int, mutation) bool) {
	t.Helper()
	x := u.node(t, s)
	x.interrupt(t, mortal(s.newClient(), lives), u.strategy)
	must.Do(t, x.resume(s.newClient(), u.strategy, "r1", u.putBack))
	u.check(t, x, u.putBack)
}

// check compares the result with that of an undisturbed exchange.
func (u unfinished) check(t *testing.T, x *exchanged, putBack bool) {
	t.Helper()
	const what = "in the end"
	switch {
	case putBack:
		x.wantMachine(t, what, x.before)
		if parking, err := x.parking(x.s.client); err == nil && parking != nil {
			x.wantGivenUp(t, what, "r1", false)
		}
	case u.strategy == cluster.Rollback:
		x.wantMachine(t, what, x.before.markedBy("r1"))
		x.wantKept(t, what, x.replacement("r0"))
	default:
		x.wantMachine(t, what, x.before.renewedBy("r1", x.serial()))
		x.wantKept(t, what, x.before.Drives["scsi0"])
	}
	x.s.intact(t)
}

// replacement is the blank system disk that a run made for the node.
func (x *exchanged) replacement(run string) driveIs {
	x.s.t.Helper()
	parking, err := x.parking(x.s.client)
	if err != nil || parking == nil || len(parking.Record.Kept) != 1 {
		x.s.t.Fatalf("parking VM %v, %v", parking, err)
	}
	id, key := int(parking.VM.ID), parking.Record.Kept[0].Key
	d := x.before.renewedBy(run, "").Drives["scsi0"]
	now := x.s.machine(id).Drives[key]
	d.Options, d.Used, d.Bytes = now.Options, now.Used, now.Bytes
	return d
}

// TestExchangeCutOff: Proxmox itself is interrupted between the parts of each hand-over of
// a disk, when no configuration names the volume.
func TestExchangeCutOff(t *testing.T) {
	long(t)
	moves := map[cluster.Strategy]int{cluster.Recreate: 3, cluster.Reimage: 1, cluster.Rollback: 2}
	stages := map[string]world.MoveStage{"once it is renamed": world.AfterRename, "once the source is written": world.AfterSource}
	var chosen slice
	for _, u := range unfinishedOnes() {
		for n := 1; n <= moves[u.strategy]; n++ {
			for when, stage := range inOrder(stages) {
				chosen.story(t, fmt.Sprintf("%s/hand-over %d/%s", u, n, when), simulated, func(t *testing.T, s *server) {
					seen := 0
					u.killed(t, s, func(_ int, c mutation) bool {
						if c.what == "move" {
							if seen++; seen == n {
								s.sim.world.StopNextMove(stage, false)
							}
						}
						return true
					})
				})
			}
		}
	}
}

// TestExchangeNoQuorum removes the quorum before each change of an exchange, or of its
// cancellation: Proxmox would destroy disks and then fail, so recast must not ask it to.
func TestExchangeNoQuorum(t *testing.T) {
	for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Reimage, false}, {cluster.Recreate, true}} {
		t.Run(u.String(), func(t *testing.T) {
			n := u.simulate(t, func(t *testing.T, s *server) int {
				x, px := u.begun(t, s), mortal(s.newClient(), immortal)
				must.Do(t, x.resume(px, u.strategy, "r1", u.putBack))
				return px.done
			})
			var chosen slice
			for k := range n {
				chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) { u.isolated(t, s, k) })
			}
		})
	}
}

// begun is a node whose exchange, or cancellation, is about to begin.
func (u unfinished) begun(t *testing.T, s *server) *exchanged {
	t.Helper()
	x := u.node(t, s)
	if u.putBack {
		x.interrupt(t, mortal(s.newClient(), untilClosed), u.strategy)
	}
	return x
}

// isolated removes the quorum after k changes. TestExchangeResume covers how the exchange continues.
func (u unfinished) isolated(t *testing.T, s *server, k int) {
	t.Helper()
	x := u.begun(t, s)
	px := mortal(s.newClient(), func(_ int, m mutation) bool {
		must.Hold(t, !m.needsQuorum() || s.sim.world.Quorate(),
			"without quorum it asks Proxmox to %s: %v %v", m.what, m.set, m.del)
		return true
	})
	px.then = func(made int) { s.sim.world.SetQuorum(made != k) }
	s.sim.world.SetQuorum(k > 0)
	err := x.resume(px, u.strategy, "r1", u.putBack)
	must.Hold(t, err != nil && px.done == k, "without quorum after change %d it made %d, and ended with: %v", k, px.done, err)
	x.wantAllThere(t)
	s.sim.world.SetQuorum(true)
}

var errKilled = errors.New("killed")

// dying is a Proxmox for a process that will be killed: from some change on it makes no
// more. It embeds only the reading methods.
type dying struct {
	cluster.Access
	cluster.Inventory
	cluster.Tasks
	px    cluster.Proxmox
	lives func(changes int, c mutation) bool
	then  func(changes int) // called after each change; may be nil
	done  int               // changes made
	dead  bool
}

var _ cluster.Proxmox = (*dying)(nil)

type mutation struct {
	what string // the method
	set  map[string]string
	del  []string
}

var newVolume = regexp.MustCompile(`^[^:,]+:\d+(?:\.\d+)?(?:,|$)`)

// needsQuorum says whether Proxmox does part of it before it notices that it can't write
// the configuration: it frees, renames or makes volumes, and then fails.
func (m mutation) needsQuorum() bool {
	for key, value := range m.set {
		if cluster.IsDiskKey(key) && newVolume.MatchString(value) {
			return true
		}
	}
	return m.what == "delete" || m.what == "free" || m.what == "move" || slices.ContainsFunc(m.del, cluster.IsDiskKey)
}

// mortal is a Proxmox that makes changes while lives allows it.
func mortal(px cluster.Proxmox, lives func(changes int, c mutation) bool) *dying {
	return &dying{Access: px, Inventory: px, Tasks: px, px: px, lives: lives}
}

func immortal(int, mutation) bool { return true }

func after(n int) func(int, mutation) bool {
	return func(changes int, _ mutation) bool { return changes < n }
}

// untilClosed allows everything except closing the record, which is the last change.
func untilClosed(_ int, c mutation) bool {
	return !strings.Contains(c.set["description"], `"open":false`)
}

func (d *dying) do(c mutation, carryOut func() error) error {
	if d.dead = d.dead || !d.lives(d.done, c); d.dead {
		return errKilled
	}
	if err := carryOut(); err != nil {
		return err
	}
	d.done++
	if d.then != nil {
		d.then(d.done)
	}
	return nil
}

func (d *dying) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	return d.do(mutation{what: "create", set: config}, func() error { return d.px.CreateVM(ctx, host, id, config) })
}

func (d *dying) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	return d.do(mutation{what: "set", set: set, del: del}, func() error { return d.px.SetConfig(ctx, vm, set, del) })
}

func (d *dying) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	return d.do(mutation{what: "free"}, func() error { return d.px.FreeDisk(ctx, vm, key) })
}

func (d *dying) DeleteVM(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "delete"}, func() error { return d.px.DeleteVM(ctx, vm) })
}

func (d *dying) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	return d.do(mutation{what: "move"}, func() error { return d.px.MoveDisk(ctx, vm, key, to, toKey) })
}

func (d *dying) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	return d.do(mutation{what: "grow"}, func() error { return d.px.GrowDisk(ctx, vm, key, size) })
}

func (d *dying) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	return d.do(mutation{what: "migrate"}, func() error { return d.px.Migrate(ctx, vm, to) })
}

func (d *dying) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return d.do(mutation{what: "set pool"}, func() error { return d.px.SetPool(ctx, id, pool) })
}

func (d *dying) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	return d.do(mutation{what: "set firewall"}, func() error { return d.px.SetFirewall(ctx, vm, want) })
}

func (d *dying) RemoveHA(ctx context.Context, id cluster.VMID) error {
	return d.do(mutation{what: "remove HA"}, func() error { return d.px.RemoveHA(ctx, id) })
}

func (d *dying) AddHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "add HA"}, func() error { return d.px.AddHA(ctx, r) })
}

func (d *dying) SetHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "set HA"}, func() error { return d.px.SetHA(ctx, r) })
}

func (d *dying) Start(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "start"}, func() error { return d.px.Start(ctx, vm) })
}

func (d *dying) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	return d.do(mutation{what: "shutdown"}, func() error { return d.px.Shutdown(ctx, vm, grace) })
}

func (d *dying) Stop(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "stop"}, func() error { return d.px.Stop(ctx, vm) })
}

// claimant is a process that wants the claim, with its own connection.
func (s *server) claimant(id int, run string) *claim.Claim {
	return &claim.Claim{
		Proxmox: s.newClient(), Cluster: exchangeCluster, VMID: cluster.VMID(id), Host: s.place.node, Run: run,
		Holder: claim.Holder{Host: "contract", Boot: "b", PID: len(run), Start: run},
		Parked: true, // other tests exchange VMs under the same cluster's name
	}
}

func (s *server) beat(id int) int {
	s.t.Helper()
	state, found, err := claim.Peek([]cluster.VM{s.read(id)}, exchangeCluster, cluster.VMID(id))
	must.Be(s.t, err == nil && found, "no claim: %v", err)
	return state.Beat
}

func TestClaim(t *testing.T) {
	story(t, "keeps a second process out, for as long as the first one lives", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		held := must.Get(s.claimant(id, "r1").Acquire(t.Context()))(t)
		began := s.beat(id)
		_, err := s.claimant(id, "r2").Acquire(t.Context())
		must.Hold(t, fault.KindOf(err) == fault.Claimed && strings.Contains(err.Error(), "run r1"), "the second one: %v", err)
		now := s.beat(id)
		must.Hold(t, now > began, "the claim's counter stands at %d, stood at %d", now, began)
		must.Do(t, held.Check(t.Context()))
		must.Do(t, held.Release(t.Context()))
		must.Hold(t, s.do(http.MethodGet, s.vm(id, "config")).Code != http.StatusOK, "given back, the claim is still there")
		next := must.Get(s.claimant(id, "r2").Acquire(t.Context()))(t)
		must.Do(t, next.Release(t.Context()))
	})
	story(t, "is no other VM's number", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		before := s.config(id)["digest"]
		_, err := s.claimant(id, "r1").Acquire(t.Context())
		must.Hold(t, fault.KindOf(err) == fault.Refused, "%v", err)
		same(t, before, s.config(id)["digest"])
	})
}

// TestClaimTakenOver: a process that was stopped for long loses the claim, and changes
// nothing any more; the process that has taken it over continues.
func TestClaimTakenOver(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		id, x, px := s.freeID(), s.newPlainNode(), s.newClient()
		beating, stopBeating := context.WithCancel(t.Context())
		held := must.Get(s.claimant(id, "r1").Acquire(beating))(t)
		steps := must.Get(x.open(held.Guard(px), cluster.Recreate, "r1"))(t)
		stopBeating()
		began := time.Now()
		next := must.Get(s.claimant(id, "r2").Acquire(t.Context()))(t)
		wantTook(t, began, claim.Watch, 0)
		parked := s.digest(x.park)
		must.FailAs(t, s.carryOut(steps), fault.Claimed, "run r2")
		x.wantMachine(t, "of the first one", x.before)
		same(t, parked, s.digest(x.park))
		must.Pass(t, x.resume(next.Guard(s.newClient()), cluster.Recreate, "r1", false))
		x.wantMachine(t, "the second one", x.before.renewedBy("r1", x.serial()))
		x.wantKept(t, "the second one", x.before.Drives["scsi0"])
		must.Do(t, next.Release(t.Context()))
		s.intact(t)
	})
}

// TestClaimLost takes the claim before each change of an exchange: neither that change nor any later one is made.
func TestClaimLost(t *testing.T) {
	u := unfinished{strategy: cluster.Reimage}
	var chosen slice
	for k := range u.simulate(t, u.count) {
		chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) {
			id, x := s.freeID(), u.node(t, s)
			held := must.Get(s.claimant(id, "r1").Acquire(t.Context()))(t)
			px := mortal(held.Guard(s.newClient()), func(made int, _ mutation) bool {
				if made == k {
					s.usurp(id)
				}
				return true
			})
			err := x.exchange(px, u.strategy, "r1")
			must.Hold(t, fault.KindOf(err) == fault.Claimed && px.done == k, "it made %d changes and ended with: %v", px.done, err)
			x.wantAllThere(t)
		})
	}
}

// usurp has another process take over at once, as if it knew that the holder is dead.
func (s *server) usurp(id int) {
	s.t.Helper()
	c := s.claimant(id, "usurper")
	c.Dead = func(claim.Holder) bool { return true }
	must.Pass(s.t, must.Err(c.Acquire(s.t.Context())))
}
