package simtest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// addNode adds a node like another one to recast.yaml and to the files, with a whole class.
func (l *Lab) addNode(node, like string, more string) {
	l.t.Helper()
	config := string(l.Read("recast.yaml"))
	addr := netip.AddrFrom4([4]byte{127, 42, 7, byte(251 + strings.Count(config, ", class: "))}) // above the DHCP pool
	class := fmt.Sprintf(`{%smemory: 4096, onboot: true, tags: [talos], cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}, {slot: scsi1, storage: fast, size: 5G, serial: data-%s}]}`, more, node)
	if !strings.Contains(config, "vmClasses:\n") {
		l.Replace("recast.yaml", "nodes:\n", "vmClasses:\nnodes:\n")
	}
	l.Replace("recast.yaml", "vmClasses:\n", fmt.Sprintf("vmClasses:\n  new-%s: %s\n", node, class))
	l.Replace("recast.yaml", "nodes:\n", fmt.Sprintf("nodes:\n  - {name: %s, schematic: %s, class: new-%s, host: pve1, vm: {ipconfig: ['ip=%s/24,gw=%s']}}\n", node, l.node(like).Schematic, node, addr, "127.42.7.1"))
	files := configFiles{node: cluster.Secret(strings.NewReplacer("data-"+like, "data-"+node, "hostname: "+like, "hostname: "+node, "minSize: 10GB", "minSize: 1GB").Replace(string(l.configOf(like))))}
	l.MachineConfig = files.read
}

// TestCreate makes a node that is nowhere yet.
func TestCreate(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 1}, map[string]struct{ node, like, class string }{
		"a worker":               {"wk2", "wk1", ""},
		"a control plane":        {"cp2", "cp1", ""},
		"in a pool, and HA":      {"wk2", "wk1", "pool: talos, ha: {state: started}, "},
		"with UEFI, two sockets": {"wk2", "wk1", "bios: ovmf, machine: q35, agent: true, sockets: 2, cores: 1, description: ours, startup: 'order=3', "},
	}, func(t *testing.T, lab *Lab, s struct{ node, like, class string }) {
		lab.allowShape()
		lab.addNode(s.node, s.like, s.class)
		user := lab.Client()
		requireDrift(t, lab, s.node)
		p := lab.planOf(user, s.node, planning.Policy{})
		mustBe(t, p.Strategy == cluster.Create && len(p.Refused) == 0 && p.VMID != 0, "planned %+v", p)
		user.rollTo(t, planning.Policy{})
		must(t, errOf(lab.Kube.Node(t.Context(), s.node)))
	})
}

// One control plane becomes three, and one again, each step by a command; what would end the cluster is refused.
func TestControlPlanesComeAndGo(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		requireFault(t, errOf(lab.Client().Remove(t.Context(), "wk9")), fault.Config, `no node "wk9"`)
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), "it is the only control plane")
		requireInSync(t, lab)
		for _, node := range []string{"cp2", "cp3"} {
			lab.addNode(node, "cp1", "")
			lab.Client().rollTo(t, planning.Policy{})
		}
		lab.requireOneEtcd("cp1", "cp2", "cp3")
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), "the talosconfig has no other endpoint")
		for _, node := range []string{"cp3", "cp2"} {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
		}
		lab.requireOneEtcd("cp1")
	})
}

// The plan refuses what would fail once its VM is there, and a file of another cluster.
func TestCreateRefused(t *testing.T) {
	type story struct {
		spoil   edit
		refused string
	}
	stories := map[string]story{
		"more memory than there is": {configuration("memory: 4096", "memory: 4096000"), "its VM takes 4000 GiB of memory, and pve1 has "},
		"the address of another":    {configuration("ip=127.42.7.251/24", "ip=127.42.7.11/24"), "its address is to be 127.42.7.11, which is that of node cp1"},
		"an unknown host":           {configuration("host: pve1", "host: pve9"), "is nodes[].host, pve9, a Proxmox node?"},
		"an unknown storage":        {configuration("{slot: scsi0, storage: fast", "{slot: scsi0, storage: fats"), "Proxmox has no storage fats"},
		"a file of another cluster": {
			func(l *Lab) { otherFile("wk2", withOtherToken)(l, drafted{}) },
			"differs from wk1 in the machine's token, the bootstrap token of Kubernetes: is it the file of another cluster?",
		},
	}
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		eachHere(t, lab, stories, func(t *testing.T, lab *Lab, s story) {
			lab.addNode("wk2", "wk1", "")
			s.spoil(lab)
			requireSays(t, strings.Join(lab.planOf(lab.Client(), "wk2", planning.Policy{}).Refused, "\n"), s.refused)
			requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), fault.Refused, s.refused)
		})
	})
}

// TestCreateKilled kills the making of a node at points of every kind, and goes on with its journal or without.
func TestCreateKilled(t *testing.T) {
	long(t)
	for _, s := range []struct{ node, like string }{{"wk2", "wk1"}, {"cp2", "cp1"}} {
		t.Run(s.node, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, oneWorker())
				lab.addNode(s.node, s.like, "")
				return lab
			},
			do: rolls(planning.Policy{}), choose: chosenPoints,
			goOn: func(t *testing.T, lab *Lab, at point) bool {
				requireFault(t, errOf(lab.Client().Recover(t.Context(), s.node)), fault.Refused)
				lab.finish(t, rolls(planning.Policy{}))
				return false
			},
			end: func(t *testing.T, lab *Lab) string {
				requireInSync(t, lab)
				requireSame(t, 1, lab.made([]string{s.node}), "there are … VMs %s (-want +got)", s.node)
				return ""
			},
		}.killEverywhere)
	}
}

func (c *Client) Remove(ctx context.Context, node string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		return pipeline.Remove(ctx, s.project, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), node)
	})
}

func (l *Lab) unlist(node string) {
	l.t.Helper()
	lines := strings.SplitAfter(string(l.Read("recast.yaml")), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "{name: "+node+",") })
	l.Write("recast.yaml", []byte(strings.Join(lines, "")))
}

// requireRemoved fails unless nothing of a node is left but its disks, which no prune frees.
func (l *Lab) requireRemoved(t *testing.T, node string, disks int) {
	t.Helper()
	require(t, errOf(l.Kube.Node(t.Context(), node)) != nil, "Kubernetes has node %s still", node)
	require(t, l.made([]string{node}) == 0, "VM %s is there still", node)
	require(t, !slices.Contains(l.memberNames(), node), "etcd has member %s still", node)
	kept := func() int {
		return len(cluster.Where(l.status().Kept, func(k pipeline.Kept) bool { return k.Node == node }))
	}
	requireSame(t, disks, kept(), "status lists … disks of it (-want +got)")
	must(t, errOf(l.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks, KeepDisks: new(0)})))
	requireSame(t, disks, kept(), "after a prune, status lists … disks of it (-want +got)")
	l.RequireIntact()
	rep := valueOf(l.Client().prune(t.Context(), pipeline.PruneOptions{Removed: node}))(t)
	requireSame(t, 0, kept(), "once they are freed, status lists … disks of it: %+v (-want +got)", rep.Disks)
}

// TestRemove takes nodes away. Their disks stay until they are freed by name.
func TestRemove(t *testing.T) {
	eachLongStory(t, map[string][]string{
		"a worker":                    {"wk1"},
		"control planes, down to one": {"cp3", "cp1"},
	}, func(t *testing.T, nodes []string) {
		lab := New(t, sim.Options{ControlPlanes: 3, Workers: 2}) // the disks of removed nodes are freed in the end
		lab.allowShape()
		lab.World.AddHA(world.HAResource{SID: fmt.Sprintf("vm:%d", lab.node(nodes[0]).VMID), State: "started"})
		for _, node := range nodes {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
			lab.requireRemoved(t, node, map[bool]int{true: 3, false: 2}[strings.HasPrefix(node, "wk")])
		}
		requireNone(t, lab.World.HA(), "Proxmox HA has … still")
		lab.requireEtcd()
	})
}

// However a removal is killed, with its journal or without, the same command goes on.
func TestRemoveKilled(t *testing.T) {
	long(t)
	for node, disks := range map[string]int{"wk1": 3, "cp2": 2} {
		t.Run(node, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab { return New(t, sim.Options{ControlPlanes: 3, Workers: 2}) },
			do:    func(ctx context.Context, c *Client) error { return errOf(c.Remove(ctx, node)) }, choose: chosenPoints,
			goOn: func(t *testing.T, lab *Lab, at point) bool {
				if at.at%3 == 0 { // cancelled, where there is something to cancel
					if _, err := lab.Client().Recover(t.Context(), node); err == nil {
						t.Attr("put-back", "1")
						requireInSync(t, lab)
						return true
					}
				}
				_, err := lab.Client().Remove(t.Context(), node)
				if err != nil && !strings.Contains(err.Error(), "Kubernetes knows no node of that name") {
					t.Fatal(err)
				}
				return false
			},
			end: func(t *testing.T, lab *Lab) string {
				lab.unlist(node)
				requireDrift(t, lab)
				lab.requireRemoved(t, node, disks)
				lab.requireEtcd()
				return ""
			},
		}.killEverywhere)
	}
}

// shape gives a node a class with these settings of its VM.
func (l *Lab) shape(node, settings string) {
	l.t.Helper()
	l.Replace("recast.yaml", "nodes:\n", "vmClasses:\n  shaped: {"+settings+"}\nnodes:\n")
	l.Replace("recast.yaml", "{name: "+node+",", "{name: "+node+", class: shaped,")
}

// shapeAll gives all nodes a class, and workers further settings.
func (l *Lab) shapeAll(all, workers string) {
	l.t.Helper()
	l.Replace("recast.yaml", "nodes:\n", "vmClasses:\n  shaped: {"+all+"}\nnodes:\n")
	for _, n := range l.Nodes {
		more := ", class: shaped,"
		if !n.ControlPlane {
			more += " vm: {" + workers + "},"
		}
		l.Replace("recast.yaml", "{name: "+n.Name+",", "{name: "+n.Name+more)
	}
}

func (l *Lab) vmOf(node string) world.VM {
	l.t.Helper()
	id := l.node(node).VMID
	return l.vmWith(func(vm world.VM) bool { return vm.ID == id })
}

func withConfig(line string) edit {
	return func(l *Lab) {
		files := l.keptConfigs()
		files.set(l.t, "wk1", line)
		l.MachineConfig = files.read
	}
}

func anImage(l *Lab) { l.Patch(sim.CommonExtension) }

func imageBy(s cluster.Strategy) edit { return all(anImage, strategy(s)) }

// TestReshape gives a node's VM another shape, in one outage with whatever else it gets, or in none.
func TestReshape(t *testing.T) {
	type story struct {
		node, settings string
		with           edit // what else is to be rolled
		strategy       cluster.Strategy
		starts         int // how often the VM is started
		has            map[string]string
	}
	const bigger = "memory: 6144, onboot: true"
	const cached = "{slot: scsi1, cache: writeback, size: 25G}, {slot: sata1, storage: fast, size: 2G}"
	none, memory := all(), map[string]string{"memory": "6144", "onboot": "1"}
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]story{
		"tags and order":  {"wk1", "tags: [talos, prod], startup: 'order=3', description: a worker", none, cluster.Reshape, 0, map[string]string{"tags": "prod;talos", "startup": "order=3", "description": "a worker"}},
		"a disk grown":    {"wk1", "disks: [{slot: scsi1, size: 30G, backup: true}]", none, cluster.Reshape, 0, map[string]string{"scsi1": "size=30G"}},
		"a disk added":    {"wk1", "disks: [{slot: scsi2, storage: fast, size: 5G, serial: more}]", none, cluster.Reshape, 0, map[string]string{"scsi2": "serial=more"}},
		"a pool and HA":   {"wk1", "pool: talos, ha: {state: started, max_restart: 2}", none, cluster.Reshape, 0, nil},
		"memory":          {"wk1", "memory: 6144, cores: 4, onboot: true", none, cluster.Reshape, 1, memory},
		"a control plane": {"cp1", bigger, none, cluster.Reshape, 1, memory},

		"options of a disk, and another": {"wk1", "disks: [" + cached + "]", none, cluster.Reshape, 1, map[string]string{"scsi1": "cache=writeback", "sata1": "size=2G"}},
		"with another image, recreated":  {"wk1", bigger + ", disks: [" + cached + "]", anImage, cluster.Recreate, 1, memory},
		"with another image, reimaged":   {"wk1", bigger + ", disks: [{slot: scsi1, cache: writeback}]", imageBy(cluster.Reimage), cluster.Reimage, 1, memory},
		"with another image, in place":   {"wk1", bigger, imageBy(cluster.InPlace), cluster.InPlace, 1, memory},
		"with a configuration":           {"wk1", bigger, withConfig(noReboot), cluster.ApplyConfig, 1, memory},
		"with one that needs a reboot":   {"wk1", bigger, withConfig(needsReboot), cluster.ApplyConfig, 1, memory},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.allowShape()
		lab.shape(s.node, s.settings)
		s.with(lab)
		p := lab.planOf(lab.Client(), s.node, planning.Policy{})
		mustBe(t, p.Strategy == s.strategy && len(p.VM) != 0 && len(p.Refused) == 0, "planned %+v", p)
		from := len(lab.Recorder.Calls())
		lab.Client().mustRoll(policyFor(s.node))
		started := toVM("POST", fmt.Sprintf("/qemu/%d/status/start", lab.node(s.node).VMID))
		requireCount(t, s.starts, lab.sent(from, started), "starts of its VM")
		vm := lab.vmOf(s.node)
		for key, want := range s.has {
			require(t, strings.Contains(vm.Config[key], want), "%s is %q, want %q", key, vm.Config[key], want)
		}
		lab.requireServing(s.node)
		if s.strategy == cluster.Reshape || s.strategy == cluster.ApplyConfig {
			requireInSync(t, lab)
		} else { // the others lack the image
			requireInSync(t, lab, lab.others(s.node)...)
		}
	})
}

// A VM that does not start with its new settings gets the old ones back, and host, by recover or another recast.yaml.
func TestReshapeInVain(t *testing.T) {
	type story struct {
		o         sim.Options
		host      string // on which it does not start
		corrected bool   // in recast.yaml; else recovered
	}
	eachLongIn(t, func(s story) sim.Options { return s.o }, map[string]story{
		"recovered":           {oneWorker(), "pve1", false},
		"corrected":           {oneWorker(), "pve1", true},
		"migrated, recovered": {twoHosts(), "pve3", false},
	}, func(t *testing.T, lab *Lab, s story) {
		if s.o.Hosts > 0 {
			lab.manageByHA(startedByUs())
			lab.onto("wk1", s.host, "cores: 32")
		} else {
			lab.shape("wk1", "cores: 32, machine: q35, nics: [{}, {bridge: vmbr0}], disks: [{slot: scsi1, cache: writeback}]")
		}
		before := lab.vmOf("wk1")
		err := lab.as(firstRun).roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "MAX 16 vcpus allowed per VM on this node", "recast undo wk1 gives VM 9031 its old settings back")
		lab.requireOn(s.host)
		if s.corrected {
			lab.Replace("recast.yaml", "cores: 32", "cores: 4")
			lab.as(secondRun).rollTo(t, planning.Policy{})
		} else {
			must(t, errOf(lab.as(secondRun).Recover(t.Context(), "wk1")))
			requireDrift(t, lab, "wk1")
			after := lab.vmOf("wk1")
			delete(after.Config, "meta")
			delete(before.Config, "meta")
			requireSame(t, before.Config, after.Config, "after recover (-before +after)")
			lab.requireOn(before.Host)
		}
		lab.requireServing("wk1")
	})
}

// A boot order that neither a new disk nor an upgrade mends: the plan leaves the node, with the one command to type.
func TestBootOrderThatNoStrategyMends(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		change("boot=order=net0;scsi0")(lab)
		requireDrift(t, lab, "wk1")
		const command = "qm set 9031 --boot 'order=scsi0;net0'"
		advises := func(texts []string, begins string) {
			t.Helper()
			is := func(text string) bool { return strings.HasPrefix(text, begins) && strings.HasSuffix(text, command) }
			require(t, slices.ContainsFunc(texts, is), "no %q … %q: %q", begins, command, texts)
		}
		// A node that was named is refused, with the same command, and so is its roll.
		left := func() {
			t.Helper()
			n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
			require(t, n.Strategy == "" && len(n.Refused) == 0 && n.ByHand == command, "planned %+v", n)
			advises(lab.planOf(lab.Client(), "wk1", onlyWorker).Refused, "")
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), command)
		}
		left()
		advises(lab.plan(planning.Policy{}).Warn, "wk1 is left as it is: it boots from net0")
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()

		// With an image to install, too, the others go on, and the report has the command.
		lab.Patch(everywhere)
		left()
		before := lab.bootID("wk1")
		advises(lab.Client().mustRoll(planning.Policy{}).Afterwards, "wk1 is left as it is")
		requireSame(t, before, lab.bootID("wk1"), "wk1 was rebooted (-want +got)")
		requireDrift(t, lab, "wk1")
		change("boot=order=scsi0;net0")(lab)
		requireNone(t, planOf(t, lab, "wk1").Refused, "afterwards refused")
	})
}

// An ISO with cloud-init data is out of its drive while the machine is blank; it is back at the end if it still exists.
func TestConfigurationOnACD(t *testing.T) {
	type story struct {
		renewal
		gone bool // the ISO is deleted meanwhile
	}
	unconfigured := renewal{strategy: cluster.Recreate, killed: before("bring-up/configure")}
	eachLong(t, oneWorker(), map[string]story{
		"recreate":                   {renewal: renewal{strategy: cluster.Recreate}},
		"recreate, killed":           {renewal: unconfigured},
		"recreate, given up":         {renewal: renewal{cluster.Recreate, unconfigured.killed, true}},
		"recreate, and the ISO goes": {renewal: unconfigured, gone: true},
		"reimage":                    {renewal: renewal{strategy: cluster.Reimage}},
		"reimage, killed":            {renewal: renewal{strategy: cluster.Reimage, killed: before("finish/restore-settings")}},
		"reimage, given up":          {renewal: renewal{cluster.Reimage, unconfigured.killed, true}},
	}, func(t *testing.T, lab *Lab, tc story) {
		strategy(tc.strategy)(lab)
		// It would install on an arbitrary disk, the first one.
		must(t, lab.World.AddISO("local", "pve1", "user-data-9031.iso", artefact.CloudInitISO([]byte(lab.configOf("wk1")))))
		whileOff(change("ide2=none,media=cdrom", "ide3=local:iso/user-data-9031.iso,media=cdrom"))(lab)
		lab.Patch(everywhere)
		media := func() string {
			config := lab.vmConfig(wk1)
			volid, _, _ := strings.Cut(config["ide3"], ",")
			return fmt.Sprint(strings.Contains(config["ide2"], "recast-"), " ", volid)
		}
		want := "false local:iso/user-data-9031.iso"
		const note = "ide3 is empty until its node is healthy: local:iso/user-data-9031.iso is taken out, so that it does not configure the blank machine"
		tc.play(t, lab, note, func() {
			got := media()
			require(t, strings.HasSuffix(got, " none"), "where it was killed: %s", got)
			if tc.gone {
				must(t, errOf(lab.World.DeleteVolume("root@pam", "pve1", "local:iso/user-data-9031.iso")))
				want = "false none"
			}
		})
		requireSame(t, want, media(), "in the drives (-want +got)")
	})
}

// The plan says how to remove affinity, which the machine does not see, and leaves out an arch that is the default.
func TestSettingsOfRootThatChangeNothing(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		whileOff(change("arch=x86_64", "affinity=0-3"))(lab)
		lab.Patch(everywhere)
		n := planOf(t, lab, "wk1")
		mustBe(t, len(n.ToRecreate) == 1 && n.ToRecreate[0].Command == "qm set 9031 --delete affinity", "%+v", n.ToRecreate)
		must(t, errOf(lab.Shell("pve1").Run(strings.Fields(n.ToRecreate[0].Command))))
		n = planOf(t, lab, "wk1")
		require(t, n.Strategy == cluster.Recreate && slices.Contains(n.Renewed, "arch (left out: its host is x86_64)"),
			"lifted: %s: %s; renewed %q", n.Strategy, n.Why, n.Renewed)
		lab.Client().rollTo(t, onlyWorker, "cp1")
		s := lab.settings()
		require(t, s["affinity"] == "" && s["arch"] == "", "affinity %q, arch %q", s["affinity"], s["arch"])
	})
}

// The first node boots through the firmware: with roll.reboot: kexec nobody would notice until the next power failure.
func TestAnImageThatBootsByKexecOnly(t *testing.T) {
	type story struct{ reboot, talos string }
	o := func(tc story) sim.Options { return sim.Options{Workers: 3, ControlPlanes: 1, TalosVersion: tc.talos} }
	eachLongIn(t, o, map[string]story{
		"canary": {"canary", ""}, "powercycle": {"powercycle", ""}, "kexec": {"kexec", ""}, "1.12, which reboots by itself": {"canary", "v1.12.6"},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.inPlace()
		lab.setRoll("reboot: "+tc.reboot, "maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(sim.PatchedExtension)
		build := lab.planOf(lab.Client(), "wk1", planning.Policy{}).Wanted.Build
		lab.BreakImage(build.SchematicID, talosapi.KexecOnly)
		before := lab.boots()
		err := lab.Client().roll(policyFor("wk1", "wk2", "wk3"))(t.Context())
		changed := len(lab.rebooted(before))
		if tc.reboot == "kexec" {
			require(t, err == nil && changed == 3, "%d nodes rebooted: %v", changed, err)
			return
		}
		require(t, changed <= 1, "%d nodes rebooted", changed)
		requireError(t, err, "did not come back from its upgrade")
	})
}

// The run after one that was killed while its first node rebooted boots another one through the firmware.
func TestAKilledFirstBootIsNoProof(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(sim.PatchedExtension)
		workers := policyFor("wk1", "wk2", "wk3")
		lab.as(firstRun).rollKilled(after("upgrade/reboot"), workers)
		plans := cluster.Where(lab.plan(workers).Nodes, func(n planning.NodePlan) bool { return n.Reboot == cluster.ByFirmware })
		firmware := cluster.Each(plans, func(n planning.NodePlan) string { return string(n.Phase) + "/" + n.Node })
		requireSame(t, []string{"unfinished/wk1", "canary/wk2"}, firmware, "through the firmware (-want +got)")
		lab.as(secondRun).rollTo(t, workers)
	})
}

// wholeFirewall has one of everything that a VM's firewall can have; its rules refer to earlier entries.
func wholeFirewall() world.Firewall {
	return world.Firewall{
		Options: map[string]string{"enable": "1", "policy_in": "DROP", "log_level_in": "info"},
		Aliases: []world.FirewallAlias{{Name: "Desk", CIDR: "192.0.2.7", Comment: "Alice's"}},
		IPSets:  []world.FirewallSet{{Name: "admins", Comment: "may see apid", Members: []world.FirewallMember{{CIDR: "192.0.2.0/28", Comment: "office"}, {CIDR: "192.0.2.9", NoMatch: true}, {CIDR: "desk"}}}},
		Rules: []world.FirewallRule{
			{"type": "in", "action": "DROP", "source": "192.0.2.66", "enable": "1", "comment": "before the next"},
			{"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "50000", "source": "+admins", "enable": "1", "log": "nolog", "iface": "net0"},
			{"type": "group", "action": "kubernetes", "enable": "1"},
			{"type": "out", "action": "REJECT", "dest": "desk", "enable": "0"},
		},
	}
}

func (l *Lab) behindFirewall(f world.Firewall) {
	l.t.Helper()
	l.Patch(sim.PatchedExtension)
	strategy(cluster.Recreate)(l)
	l.World.SetFirewall(wk1, f)
}

func requireFirewall(t *testing.T, lab *Lab, want world.Firewall) {
	t.Helper()
	requireSame(t, want, lab.World.FirewallOf(wk1), "wk1's firewall (-want +got)")
}

// TestAFirewallIsCarriedOver, with its rules in order, before the VM is started.
func TestAFirewallIsCarriedOver(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.behindFirewall(wholeFirewall())
		started := false
		lab.beforeNth(1, toVM("POST", "/qemu/9031/status/start"), func() {
			started = true
			requireFirewall(t, lab, wholeFirewall())
		})
		lab.Client().rollTo(t, planning.Policy{})
		require(t, started, "it was not started")
		requireFirewall(t, lab, wholeFirewall())
	})
}

// An invalid firewall is found before its node is touched: by the plan, or when the parking VM gets it.
func TestAnInvalidFirewallIsDetected(t *testing.T) {
	stale := wholeFirewall()
	stale.Rules = append(stale.Rules, world.FirewallRule{"type": "in", "action": "ACCEPT", "source": "gone", "enable": "1"})
	type story struct {
		of     world.Firewall
		refuse bool
		want   string
	}
	eachLong(t, oneWorker(), map[string]story{
		"its alias is gone":           {of: stale, want: `a firewall that Proxmox would not take again (rule 4: {"source":"no such alias 'gone'"})`},
		"a set that the token has no": {of: wholeFirewall(), refuse: true, want: "no such ipset 'zone-all'"},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.behindFirewall(tc.of)
		if tc.refuse {
			lab.World.FailNext("POST /nodes/pve1/qemu/9002/firewall/rules", "no such ipset 'zone-all'")
		}
		began := lab.boots()
		requireSays(t, message(lab.Client().roll(planning.Policy{})(t.Context())), tc.want)
		require(t, slices.Equal(lab.boots(), began), "the node was touched")
		requireFirewall(t, lab, tc.of)
	})
}

// TestAFirewallThatChangesMeanwhile is not lost: the VM stays.
func TestAFirewallThatChangesMeanwhile(t *testing.T) {
	eachLong(t, oneWorker(), map[string]int{"the VM's": wk1, "the parking VM's": 9002}, func(t *testing.T, lab *Lab, of int) {
		lab.behindFirewall(wholeFirewall())
		other := wholeFirewall()
		other.Rules = other.Rules[1:]
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if strings.HasSuffix(call.Path, "/status/shutdown") {
				lab.World.SetFirewall(of, other)
			}
		})
		requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), "the firewall of ")
		lab.Recorder.Hooks(nil, nil)
		lab.World.SetFirewall(of, wholeFirewall())
		lab.second().rollTo(t, planning.Policy{})
		requireFirewall(t, lab, wholeFirewall())
	})
}

// After its sender was killed, a rule arrives, before all others, when the next run has written all of the firewall.
func TestALateRule(t *testing.T) {
	eachLong(t, oneWorker(), map[string]int{"the new VM": wk1, "the parking VM": 9002}, func(t *testing.T, lab *Lab, of int) {
		lab.behindFirewall(wholeFirewall())
		x := lab.rollKilledBy(toVM("POST", fmt.Sprintf("/qemu/%d/firewall/rules", of)), planning.Policy{})
		x.deliverBefore(toVM("POST", "/qemu/9031/status/"), exchange.LateQueue)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		time.Sleep(exchange.LateQueue)
		require(t, strings.HasSuffix(x.said, ": 200"), "the late rule: %q", x.said)
		requireDrift(t, lab)
		requireFirewall(t, lab, wholeFirewall())
	})
}

// mesh has all nodes take part in KubeSpan, by the main document or by one of its own.
func (l *Lab) mesh(document bool) {
	l.t.Helper()
	s := l.session()
	defer s.end()
	for _, name := range []string{"cp1", "wk1"} {
		n, text := l.node(name), string(l.configOf(name))
		on := strings.Replace(text, "machine:\n", "machine:\n    network: {kubespan: {enabled: true}}\n", 1)
		if document {
			on = text + "\n---\napiVersion: v1alpha1\nkind: KubeSpanConfig\nenabled: true\n"
		}
		l.editConfig(name, text, on)
		must(l.t, s.machines.Talos.Reboot(l.t.Context(), n.Addr, n.UUID, "")) // it registers anew
		time.Sleep(5 * time.Minute)
	}
}

// Where a node's old peer lists before its new one, it is not reached until that is forgotten: the roll waits for it.
func TestKubeSpan(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"the new one lists first": false, "the old one lists first": true}, func(t *testing.T, lab *Lab, late bool) {
		lab.mesh(late)
		lab.Patch(sim.PatchedExtension)
		lab.NodeIDsBegin(map[bool]string{false: "!", true: "~"}[late])
		n := planOf(t, lab, "wk1")
		mustBe(t, n.KubeSpan && slices.Contains(n.Notes, planning.OldPeer) && planning.Outage(n) == planning.PeerLasts, "planned %+v", n)
		var said []string
		c := lab.Client().hears(notes("wait-healthy", &said))
		began := time.Now()
		must(t, c.roll(onlyWorker)(context.WithoutCancel(t.Context())))
		require(t, time.Since(began) > planning.PeerLasts == late, "it took %s", time.Since(began))
		require(t, !late || strings.Contains(strings.Join(said, "\n"), planning.OldPeer), "said %q", said)
		requireInSync(t, lab)
	})
}

// wk1's address in its machine configuration.
const (
	staticAddress = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: 127.42.7.31/24\nroutes:\n  - gateway: 127.42.7.1\n"
	vlanAddress   = "apiVersion: v1alpha1\nkind: VLANConfig\nname: eth0.42\nvlanID: 42\nparent: eth0\naddresses:\n  - address: 127.42.7.31/24\n"
	dhcpAddress   = "apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n"
)

const onlyHere = "its address 127.42.7.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "

const orByDHCP = "; or reserve it for MAC bc:24:11:00:23:47 in DHCP and have the machine configuration say dhcp: true there; or use in-place"

// addressed gives wk1 a document about its address; reserved says whether DHCP reserves the address.
func (l *Lab) addressed(document string, reserved bool) {
	l.t.Helper()
	if reserved { // before the machine asks
		l.Reserve("wk1", true)
	}
	config := string(l.configOf("wk1"))
	documents := slices.DeleteFunc(strings.Split(config, "---\n"), func(doc string) bool { return strings.Contains(doc, "\nkind: LinkConfig\n") })
	l.editConfig("wk1", config, strings.Join(append(documents, document), "---\n"))
	if !reserved {
		l.Reserve("wk1", false)
	}
}

// settings are those of wk1's VM, without what Proxmox or a roll regenerates.
func (l *Lab) settings() map[string]string {
	out := maps.Clone(l.vmConfig(wk1))
	for _, key := range []string{"digest", "meta", "vmgenid", "boot", "description", "scsi0", "scsi1", "efidisk0"} {
		delete(out, key)
	}
	out["smbios1"] = ofProof.ReplaceAllString(out["smbios1"], "")
	return out
}

// renewal is a roll that gives wk1 a new system disk. It may be killed, and then resumed, or the replacement cancelled.
type renewal struct {
	strategy cluster.Strategy
	killed   moment
	recover  bool
}

// play does all that in a lab where the node is stale. Its plan has that note; killed is called where it was killed.
func (r renewal) play(t *testing.T, lab *Lab, note string, killed func()) {
	t.Helper()
	n := planOf(t, lab, "wk1")
	require(t, slices.Contains(n.Notes, note) && len(n.Refused) == 0, "refused %q, notes %q", n.Refused, n.Notes)
	if r.killed != (moment{}) {
		lab.Client().rollKilled(r.killed, onlyWorker)
		time.Sleep(time.Minute)
		killed()
	}
	if r.recover {
		must(t, lab.Client().giveUp("wk1")(t.Context()))
	} else {
		lab.Client().rollTo(t, onlyWorker, "cp1")
	}
	lab.RequireIntact()
}

// A blank machine is told an address that is only in its machine configuration, and the VM is unchanged.
func TestStaticAddressOnNoCloud(t *testing.T) {
	eachLong(t, oneWorker(), map[string]renewal{
		"recreate":                 {strategy: cluster.Recreate},
		"recreate, with a VM":      {strategy: cluster.Recreate, killed: after("create-vm")},
		"recreate, blank":          {strategy: cluster.Recreate, killed: before("bring-up/configure")},
		"recreate, given up":       {strategy: cluster.Recreate, killed: before("bring-up/configure"), recover: true},
		"reimage":                  {strategy: cluster.Reimage},
		"reimage, with a disk":     {strategy: cluster.Reimage, killed: after("blank-disk")},
		"reimage, nearly finished": {strategy: cluster.Reimage, killed: before("finish/restore-settings")},
		"reimage, given up":        {strategy: cluster.Reimage, killed: before("bring-up/configure"), recover: true},
	}, func(t *testing.T, lab *Lab, r renewal) {
		strategy(r.strategy)(lab)
		lab.addressed(staticAddress, false)
		whileOff(change("ide0=fast:cloudinit", "ipconfig0=ip=dhcp"))(lab)
		lab.Patch(everywhere)
		before := lab.settings()
		const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig0 is gw=127.42.7.1,ip=127.42.7.31/24 for that boot, and as before at the end"
		r.play(t, lab, note, func() {
			requireSame(t, "gw=127.42.7.1,ip=127.42.7.31/24", lab.settings()["ipconfig0"], "where it was killed (-want +got)")
		})
		requireSame(t, before, lab.settings(), "settings of the VM (-before +after)")
		requireSame(t, "127.42.7.31", planOf(t, lab, "wk1").Addr.String(), "its address (-want +got)")
	})
}

// A blank machine would have another address, so there is none, and every remedy in the plan works.
func TestStaticAddressOnMetal(t *testing.T) {
	const (
		platform = "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address"
		drive    = "give the VM a cloud-init drive (qm set 9031 --scsi30 fast:cloudinit)"
	)
	eachLong(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"in-place": nil,
		"DHCP":     func(t *testing.T, lab *Lab) { lab.addressed(dhcpAddress, true) },
		"nocloud": func(t *testing.T, lab *Lab) {
			change("scsi30=fast:cloudinit")(lab)
			requireSays(t, planOf(t, lab, "wk1").Why, onlyHere+platform+orByDHCP)
			lab.Replace("recast.yaml", "platform: metal", "platform: nocloud")
			lab.Patch(everywhere)
		},
	}, func(t *testing.T, lab *Lab, remedy func(t *testing.T, lab *Lab)) {
		lab.lockImages("platform: metal")
		lab.addressed(staticAddress, false)
		const reason = onlyHere + platform + ", and " + drive + orByDHCP
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			config := lab.Read("recast.yaml")
			strategy(s)(lab)
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), reason)
			lab.Write("recast.yaml", config)
		}
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.InPlace, "recreate and reimage are impossible ("+reason+")")
		want := cluster.InPlace
		if remedy != nil {
			remedy(t, lab)
			want = cluster.Recreate
		}
		requirePlanned(t, planOf(t, lab, "wk1"), want)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireSays(t, string(lab.Read("recast.yaml")), "platform: "+lab.machine("wk1").Platform)
	})
}

// TestAddressOnAVLAN: neither DHCP nor a cloud-init drive creates the link.
func TestAddressOnAVLAN(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.addressed(vlanAddress, true)
		whileOff(change("ide0=fast:cloudinit"))(lab)
		lab.Patch(everywhere)
		const reason = "its address 127.42.7.31 is on eth0.42 (vlan), a link that only its machine configuration makes, so a blank machine would not have it: " +
			"have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.InPlace, "recreate and reimage are impossible ("+reason+")")
	})
}

// TestAnotherAddressIsRefused: a node that exists keeps what cloud-init gives it, whatever else is rolled.
func TestAnotherAddressIsRefused(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const has, other = "ip=127.42.7.31/24,gw=127.42.7.1", "ip=127.42.7.99/24,gw=127.42.7.1"
		lab.EditVM(lab.node("wk1").VMID, "ipconfig0", has)
		lab.shape("wk1", "ipconfig: ['gw=127.42.7.1,ip=127.42.7.31/24']")
		requireInSync(t, lab)
		lab.Replace("recast.yaml", "gw=127.42.7.1,ip=127.42.7.31/24", other)
		from := len(lab.Recorder.Calls())
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "etcd, Kubernetes and the talosconfig would not find it")
		lab.Patch(everywhere)
		for _, strategy := range []string{"recreate", "reimage", "in-place"} {
			lab.Replace("recast.yaml", "{name: wk1,", "{name: wk1, strategy: "+strategy+",")
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "etcd, Kubernetes and the talosconfig would not find it")
			lab.Replace("recast.yaml", " strategy: "+strategy+",", "")
		}
		lab.requireLeftAlone(from, "wk1")
		requireSame(t, has, lab.vmOf("wk1").Config["ipconfig0"], "it has (-want +got)")
	})
}
