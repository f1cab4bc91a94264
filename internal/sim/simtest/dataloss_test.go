package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// boundVolume is a Kubernetes volume on the system disk of wk1.
func boundVolume() edit { return volume("pvc-1", local("/var/local-path/pvc-1")) }

const (
	pvLost    = "PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost"
	pvRefused = "PersistentVolume pvc-1 (claim default/db-0) is on the system disk and would be lost: move it to a disk of its own, or name pv/pvc-1 in nodes[].acceptLoss"
)

// door is a way in which a system disk with data leaves its node.
type door struct {
	at    moment           // of the roll, at which it is killed; none: it finishes
	off   bool             // then it is continued on another machine, with the node powered off
	early bool             // the volume exists before the roll, which accepts its loss, and not afterwards
	leave leaveFunc        // the way in which the disk would leave
	plan  cluster.Strategy // strategy of the plan that lets it leave; "": no plan
}

type leaveFunc func(context.Context, *Client) (pipeline.Report, error)

func byRecover(ctx context.Context, c *Client) (pipeline.Report, error) { return c.Recover(ctx, "wk1") }

func byRollback(ctx context.Context, c *Client) (pipeline.Report, error) {
	return c.Rollback(ctx, onlyWorker)
}

func byRoll(ctx context.Context, c *Client) (pipeline.Report, error) { return c.Roll(ctx, onlyWorker) }

// TestNoDiskIsLostWithoutConsent: in whichever way a system disk leaves a node, volumes on it are
// refused with the remedy, and listed once acceptLoss names them.
func TestNoDiskIsLostWithoutConsent(t *testing.T) {
	eachLong(t, oneWorker(), map[string]door{
		"rollback":                       {leave: byRollback, plan: cluster.Rollback},
		"recover of a node that serves":  {at: before("finish/keep"), leave: byRecover, plan: cluster.PutBack},
		"put-back of a roll, node off":   {at: before("finish/keep"), off: true, leave: byRoll, plan: cluster.PutBack},
		"resume before the disk is away": {at: after("take-down/stop"), leave: byRoll, plan: cluster.Recreate},
		"recover of one that never ran":  {at: before("bring-up/start"), early: true, leave: byRecover},
		"recover of one that is blank":   {at: before("bring-up/configure"), early: true, leave: byRecover},
		"recover with the old disk":      {at: after("take-down/drain"), leave: byRecover},
	}, func(t *testing.T, lab *Lab, d door) {
		lab.Patch(everywhere)
		if d.early {
			boundVolume()(lab)
			acceptLoss("pv/pvc-1")(lab)
		}
		first := lab.as(firstRun)
		if d.at == (moment{}) {
			must(t, first.roll(onlyWorker)(t.Context()))
		} else {
			first.killedAt(t, d.at, first.roll(onlyWorker))
		}
		if d.off {
			lab.loseJournal()
			must(t, lab.World.PowerOff(wk1))
		}
		if d.early {
			configuration(" acceptLoss: ['pv/pvc-1'],", "")(lab)
		} else {
			boundVolume()(lab)
		}
		before := lab.machinesDump()
		rep, err := d.leave(t.Context(), lab.as(secondRun))
		if d.plan == "" {
			require(t, err == nil && len(rep.Plan.Nodes[0].WillLose) == 0, "it asks for what is not on that disk: %v", err)
			return
		}
		requireRefused(t, err, pvRefused)
		i := slices.IndexFunc(rep.Plan.Nodes, func(n planning.NodePlan) bool { return n.Node == "wk1" })
		mustBe(t, i >= 0, "plan %+v", rep.Plan)
		n := rep.Plan.Nodes[i]
		unread := strings.Contains(strings.Join(n.Refused, "\n"), "unread/"+firstRun)
		require(t, n.Strategy == d.plan && unread == d.off,
			"%s, refused because the machine does not answer: %t, want %t: %q", n.Strategy, unread, d.off, n.Refused)
		requireSame(t, before, lab.machinesDump(), "something was changed:\n… (-want +got)")
		accept := []string{"pv/pvc-1"}
		if d.off {
			accept = append(accept, "unread/"+firstRun)
		}
		acceptLoss(accept...)(lab)
		var shown []string
		c := lab.as(thirdRun)
		c.Confirm = func(p planning.Plan) (bool, error) {
			if n := p.Nodes[0]; shown == nil && n.Strategy == d.plan {
				shown = n.WillLose
			}
			return true, nil
		}
		must(t, errOf(d.leave(t.Context(), c)))
		require(t, slices.Contains(shown, pvLost), "shown as lost: %q", shown)
		lab.RequireIntact()
	})
}

// A volume that is bound between the plan and the exchange is detected, and then nothing is changed.
func TestBoundMeanwhile(t *testing.T) {
	long(t)
	type story struct {
		earlier func(*testing.T, *Client) // an earlier roll; nil: none
		leave   leaveFunc
		at      moment // at which it is bound; none: at the confirmation
		off     bool   // the VM is off by then
	}
	finished := func(t *testing.T, c *Client) { must(t, c.roll(onlyWorker)(t.Context())) }
	serving := func(t *testing.T, c *Client) { c.killedAt(t, before("finish/keep"), c.roll(onlyWorker)) }
	drain, off := before("take-down/drain"), after("take-down/stop")
	eachInLab(t, oneWorker(), map[string]story{
		"recreate, at the gate":        {leave: byRoll},
		"recreate, in the drain":       {leave: byRoll, at: drain},
		"recreate, once it is off":     {leave: byRoll, at: off, off: true},
		"rollback, at the gate":        {earlier: finished, leave: byRollback},
		"rollback, in the drain":       {earlier: finished, leave: byRollback, at: drain},
		"rollback, once it is off":     {earlier: finished, leave: byRollback, at: off, off: true},
		"recover, at the gate":         {earlier: serving, leave: byRecover},
		"recover, once the new is off": {earlier: serving, leave: byRecover, at: after("put-back/stop"), off: true},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(everywhere)
		if s.earlier != nil {
			s.earlier(t, lab.as(firstRun))
		}
		before := lab.machinesDump()
		second := lab.as(secondRun)
		bind := sync.OnceFunc(func() { boundVolume()(lab) })
		second.Confirm = func(planning.Plan) (bool, error) {
			if s.at == (moment{}) {
				bind()
			}
			return true, nil
		}
		second.Emit = func(e step.Event) {
			if s.at.is(e) {
				bind()
			}
		}
		requireRefused(t, errOf(s.leave(t.Context(), second)), pvRefused)
		lab.RequireIntact()
		if s.off {
			requireSays(t, lab.systemDisks(), "scsi0 of VM 9031 ")
		} else {
			requireSame(t, before, lab.machinesDump(), "it is not as it was (-before +after)")
		}
		// The volume is not needed after all: the same command continues.
		without(store.Volumes(), "", "pvc-1")(lab)
		err := errOf(s.leave(t.Context(), lab.as(thirdRun)))
		require(t, err == nil || strings.Contains(err.Error(), "is not finished"), "the same command again: %v", err)
	})
}

// systemDisks are the drives of wk1's VM and of parking VMs, as a plan names them.
func (l *Lab) systemDisks() string {
	var out []string
	for _, vm := range l.World.VMs() {
		kind := "VM"
		if strings.Contains(vm.Config["name"], "parking") {
			kind = "parking VM"
		}
		for key, value := range vm.Config {
			if cluster.IsDiskKey(key) && (vm.ID == wk1 || kind != "VM") {
				volid, _, _ := strings.Cut(value, ",")
				out = append(out, fmt.Sprintf("%s of %s %d %s", key, kind, vm.ID, volid))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestGivenUpDiskIsKept: the system disk of a cancelled replacement is parked with a name. No rollback boots it; recast
// prune frees it, and so does the end of the node's next roll.
func TestGivenUpDiskIsKept(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"prune": func(t *testing.T, lab *Lab) {
			rep := valueOf(lab.Client().pruneDisks(t.Context(), 1, nil))(t)
			require(t, len(rep.Disks) == 1 && rep.Disks[0].GivenUp && rep.Disks[0].Removed, "pruned %+v", rep.Disks)
		},
		"the next roll": func(t *testing.T, lab *Lab) {
			p := lab.planOf(lab.Client(), "wk1", planning.Policy{})
			require(t, len(p.Frees) == 1 && p.Frees[0].GivenUp && strings.Contains(p.Frees[0].String(), "run "+firstRun+" had made and which was given up"),
				"frees %+v", p.Frees)
			must(t, lab.as(thirdRun).roll(onlyWorker)(t.Context()))
			lab.requireKept(1)
		},
	}, func(t *testing.T, lab *Lab, next func(t *testing.T, lab *Lab)) {
		lab.Patch(everywhere)
		lab.as(firstRun).rollKilled(before("finish/keep"), onlyWorker)
		media := lab.media(volidOf(lab, wk1, "scsi0"))
		must(t, lab.as(secondRun).giveUp("wk1")(t.Context()))
		res, err := lab.Client().Status(t.Context())
		mustBe(t, err == nil && len(res.Kept) == 1 && res.Kept[0].GivenUp && res.Kept[0].Run == firstRun,
			"kept %+v, %v", res.Kept, err)
		require(t, lab.media(res.Kept[0].Volid) == media, "another disk is kept")
		requireRefused(t, lab.as(secondRun).goBack("wk1")(t.Context()), "no earlier system disk of it is parked")
		next(t, lab)
		res = lab.status()
		require(t, !slices.ContainsFunc(res.Kept, func(k pipeline.Kept) bool { return k.GivenUp }),
			"kept after all: %+v", res.Kept)
		lab.RequireIntact()
	})
}

// For an unfinished replacement the plan has each disk's present name and place, not the earlier ones.
func TestPlanNamesDisksAsTheyAreNow(t *testing.T) {
	inAMove := onServer("/qemu/9031/move_disk POST")
	eachLong(t, oneWorker(), map[string]moment{
		"on the parking VM":       after("delete-vm"),
		"some on either":          after("park/scsi0"),
		"given back":              before("bring-up/configure"),
		"a name without a volume": inAMove,
	}, func(t *testing.T, lab *Lab, at moment) {
		lab.Patch(everywhere)
		first, want := lab.as(firstRun), 0
		if at == inAMove {
			want = 1
			must(t, first.roll(onlyWorker)(t.Context())) // it has tried the storage with a scratch volume
			lab.Patch(sim.CommonExtension)
			first = lab.as(secondRun)
			lab.World.StopNextMove(world.AfterRename, false)
		}
		first.killedAt(t, at, first.roll(onlyWorker))
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		unnamed := 0
		for _, d := range append(n.Carried, *n.System) {
			switch {
			case d.Volid == "" && strings.Contains(d.Where, "without a name, on the way from"):
				unnamed++
			case !strings.Contains(lab.systemDisks(), d.Where+" "+d.Volid):
				t.Errorf("%s is said to be %s, %s; there is\n%s", d.Key, d.Volid, d.Where, lab.systemDisks())
			}
		}
		require(t, unnamed == want, "%d disks without a name: %+v", unnamed, n)
	})
}

var (
	linstorSatellites = resource("piraeus.io/v1", "linstorsatellites", "LinstorSatellite", false)
	linstorClusters   = resource("piraeus.io/v1", "linstorclusters", "LinstorCluster", false)
)

func (l *Lab) installPiraeus() {
	l.Kube.Define(linstorSatellites)
	l.Kube.Define(linstorClusters)
}

// daemons are pods on every node that write to a host path.
func daemons(namespace, name, at string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.put(store.DaemonSets(), daemonSet(namespace, name, writesTo(name, at)))
		time.Sleep(20 * time.Second)
	}
}

// writesTo is a pod that writes to a host path.
func writesTo(name, at string) corev1.PodSpec {
	return corev1.PodSpec{
		Containers: []corev1.Container{{Name: name, Image: "registry.k8s.io/pause", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at}}}},
	}
}

func noDaemons(namespace, name string) edit {
	return func(l *Lab) {
		without(store.DaemonSets(), namespace, name)(l)
		time.Sleep(time.Minute)
	}
}

// pool is a LINSTOR storage pool on wk1.
func pool(kind string, pairs ...string) edit {
	spec := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		spec[pairs[i]] = pairs[i+1]
	}
	return func(l *Lab) {
		l.t.Helper()
		l.put(linstorSatellites.GroupVersionResource, object(linstorSatellites, "", "wk1", map[string]any{
			"spec": map[string]any{"storagePools": []any{map[string]any{"name": "pool", kind: spec}}},
		}))
	}
}

// physicalVolume is a partition with an LVM physical volume.
func physicalVolume(label, group string) artefact.Partition {
	return artefact.Partition{
		Label: label, UUID: "0b5f0000-0000-4000-8000-0000000000" + label[len(label)-2:],
		Filesystem: "lvm2-pv", FilesystemUUID: "aaaaaa-bbbb-cccc-dddd-eeee-ffff-0000" + label[len(label)-2:], VolumeGroup: group,
	}
}

// twoGroups puts LINSTOR's volume group on the data disk, and another one on the system disk.
func twoGroups(l *Lab) {
	l.t.Helper()
	pool("lvmPool", "volumeGroup", "vg0")(l)
	whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")), partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))(l)
}

func all(edits ...edit) edit {
	return func(l *Lab) {
		for _, e := range edits {
			e(l)
		}
	}
}

// localRefusals are data of pods, LINSTOR and LVM that exist only on the system disk.
func localRefusals() []refusal {
	only := func(what, name string) string {
		return what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"
	}
	topolvm := volume("pvc-1", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "topolvm.io", VolumeHandle: "h"}})
	noVolume, noPool := without(store.Volumes(), "", "pvc-1"), without(linstorSatellites.GroupVersionResource, "", "wk1")
	const vg0 = "LINSTOR storage pool pool (vg0)"
	return []refusal{
		loss("hostpath/var/lib/agent", "hostPath /var/lib/agent (DaemonSet default/agent)", daemons("default", "agent", "/var/lib/agent"), noDaemons("default", "agent")),
		{name: "what a DaemonSet makes anew", bring: daemons("default", "vector", "/var/lib/vector"), undo: noDaemons("default", "vector")},
		{name: "hostPath on another disk", bring: daemons("default", "agent", "/var/mnt/data/agent"), undo: noDaemons("default", "agent")},
		loss("linstor/var/lib/linstor-pools/pool", "LINSTOR storage pool pool (/var/lib/linstor-pools/pool)", pool("fileThinPool"), noPool),
		{name: "LINSTOR's files on another disk", bring: pool("filePool", "directory", "/var/mnt/data/linstor"), undo: noPool},
		loss("pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)", topolvm, noVolume),
		{
			name: "TopoLVM on another disk", bring: all(topolvm, whileOff(partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))),
			undo: all(noVolume, whileOff(unpartitioned(wk1Data, 1))),
		},
		{
			name: "TopoLVM on the system disk", bring: all(topolvm, whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")))),
			both: []string{only("volume r-lvm11", "r-lvm11"), pvRefused}, lift: acceptLoss("r-lvm11", "pv/pvc-1"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", pvLost},
			undo: all(noVolume, whileOff(unpartitioned(wk1System, 1))),
		},
		{
			name: "two volume groups, and Talos before 1.14 does not tell them apart", bring: twoGroups,
			both: []string{only("volume r-lvm11", "r-lvm11"), only(vg0, "linstor/pool")}, lift: acceptLoss("r-lvm11", "linstor/pool"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", vg0 + " on the system disk will be lost"},
			undo: all(noPool, whileOff(unpartitioned(wk1System, 1), unpartitioned(wk1Data, 1))),
		},
	}
}

// Since 1.14 Talos reports the volume groups, so that only the one on the system disk counts as lost.
func TestVolumeGroupsAreToldApart(t *testing.T) {
	o := oneWorker()
	o.TalosVersion = talos14
	inDamagedLab(t, o, func(t *testing.T, lab *Lab) {
		lab.installPiraeus()
		lab.Patch(sim.PatchedExtension)
		twoGroups(lab)
		strategy(cluster.Recreate)(lab)
		n := planOf(t, lab, "wk1")
		want := []string{"volume r-lvm11 is on the system disk and would be lost: move it to a disk of its own, or name r-lvm11 in nodes[].acceptLoss"}
		requireSame(t, want, n.Refused, "refused (-want +got)")
	})
}
