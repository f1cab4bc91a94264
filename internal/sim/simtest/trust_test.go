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
		lab.World.Grant(world.ACL{Path: "/", Who: "below@pve", Role: "Uploads", Propagate: true})
		lab.World.Grant(world.ACL{Path: "/storage", Who: "below@pve", Role: "Looks", Propagate: true})
		requireSame(t, []string{"access to " + sim.ISOStorage + ": token ci@pve!isos, user tenant@pve"}, seen(), "others (-want +got)")
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
