package simtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/layouts"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/configs"
)

type layoutLab struct {
	*Lab
	of     layouts.Layout
	node   sim.Node
	before map[string]string // its shape
}

// newLayoutLab starts a layout's lab; secrets are those of another lab of it, nil: new ones.
func newLayoutLab(t *testing.T, layout layouts.Layout, secrets *talosapi.Cluster) *layoutLab {
	o := layout.Options()
	o.Talos = secrets
	l := &layoutLab{Lab: New(t, o), of: layout}
	l.node = l.Lab.node(layout.Node)
	l.World.AddRole("Recast", append(sim.Privileges(), "Mapping.Use", "Sys.Console", "Sys.Modify")...) // as doctor would advise
	must(t, layout.Furnish(t.Context(), l.Lab.Lab))
	time.Sleep(time.Minute) // pods start
	l.protect()
	l.line(layout.Recast)
	extension := sim.PatchedExtension
	if l.node.ControlPlane {
		extension = sim.CommonExtension
	}
	l.Patch(extension)
	return l
}

func (l *layoutLab) line(more string) {
	if more != "" {
		l.Replace("recast.yaml", "{name: "+l.of.Node+",", "{name: "+l.of.Node+", "+more+",")
	}
}

// protect makes every disk of the node except the system disk a protected one.
func (l *layoutLab) protect() {
	vm := l.vm()
	for _, key := range layouts.Persistent(vm.Config, l.node.SystemDrive()) {
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		if strings.HasPrefix(volid, "/") {
			continue // a device of the host, which outlives the VM
		}
		media := l.World.Media(volid, l.node.Host)
		mustBe(l.t, media != nil, "there is no %s", volid)
		d := world.Protected{Serial: l.of.Name + " " + key, Media: media, Held: !strings.Contains(volid, fmt.Sprintf("vm-%d-", l.node.VMID))}
		disk, _ := artefact.ReadDisk(media.Bytes()) // foreign content has no EPHEMERAL
		if slices.ContainsFunc(disk.Partitions, func(p artefact.Partition) bool { return p.Label == "EPHEMERAL" }) {
			d.Identity = talosapi.Lasting
		}
		l.World.Protect(d)
		l.persistent = append(l.persistent, content{d.Serial, media.SHA256()})
	}
}

func (l *layoutLab) vm() world.VM { return valueOf(l.World.LookupVM(l.node.Host, l.node.VMID))(l.t) }

// shape is the VM's configuration without what a roll may change: names of volumes, the system disk, regenerated
// values, the mark of the run, and the boot ISO's CD drive, which stays empty if the VM had none.
func (l *layoutLab) shape() map[string]string {
	shape := map[string]string{}
	for key, value := range l.vm().Merged() {
		d, err := cluster.ParseDisk(key, value)
		switch {
		case key == "arch" && value == "x86_64": // the hosts' default
			continue
		case key == l.node.SystemDrive(), slices.Contains([]string{"meta", "vmgenid", "digest"}, key), err == nil && d.CDROM && !d.CloudInit():
			continue
		case err == nil && !d.CDROM:
			slices.Sort(d.Options)
			value = strings.Join(d.Options, ",")
		case key == "boot":
			value = regexp.MustCompile(`;ide\d`).ReplaceAllString(value, "")
		case key == "description":
			value = regexp.MustCompile(`\n?recast: run=.*`).ReplaceAllString(value, "")
		}
		if value != "" {
			shape[key] = value
		}
	}
	return shape
}

func (l *layoutLab) lift() {
	shell := l.Shell(l.node.Host)
	for _, command := range l.of.Lift.Commands {
		words := strings.Fields(command)
		var err error
		switch {
		case strings.HasPrefix(command, "qm reboot "):
			l.powerCycle(l.node)
		case strings.HasPrefix(command, "pvesh create /cluster/mapping/pci --id "):
			l.World.AddMapping("pci", words[4], l.node.Host)
		case strings.HasPrefix(command, "pvesh create /cluster/mapping/usb --id "):
			l.World.AddMapping("usb", words[4], l.node.Host)
		case words[0] == "kubectl":
			err = l.kubectl(words[1:])
		case words[0] == "pveum":
			_, err = l.Pveum(words[1:])
		case strings.HasPrefix(command, "pvesr delete "):
			l.World.RemoveReplication(words[2])
		case strings.HasPrefix(command, "qm delsnapshot "):
			err = l.World.DeleteSnapshot(l.node.VMID, words[3])
		default:
			_, err = shell.Run(words)
		}
		mustBe(l.t, err == nil, "%s: %v", command, err)
	}
	if key, value, images := strings.Cut(strings.TrimPrefix(l.of.Lift.Config, "images."), ": "); images {
		was := regexp.MustCompile("(?m)^  " + key + ": .*$").Find(l.Read("recast.yaml"))
		l.Replace("recast.yaml", string(was), "  "+key+": "+value)
		l.lock()
	}
	l.line(l.of.Lift.Recast)
}

// kubectl is kubectl -n NAMESPACE patch RESOURCE.GROUP NAME --type merge -p PATCH, and some minutes for controllers.
func (l *layoutLab) kubectl(words []string) error {
	if len(words) != 9 || words[0] != "-n" || words[2] != "patch" || words[5] != "--type" || words[6] != "merge" || words[7] != "-p" {
		return errors.New("only kubectl -n … patch … --type merge -p … is known")
	}
	config := valueOf(clientcmd.RESTConfigFromKubeConfig([]byte(l.Read("kubeconfig"))))(l.t)
	config.Dial = l.Lab.Lab.Client().DialContext
	transport := valueOf(rest.HTTPClientFor(config))(l.t)
	defer utilnet.CloseIdleConnectionsFor(transport.Transport)
	client := valueOf(dynamic.NewForConfigAndClient(config, transport))(l.t)
	resource, group, _ := strings.Cut(words[3], ".")
	kind := schema.GroupVersionResource{Group: group, Version: "v1beta2", Resource: resource}
	patch := []byte(strings.Trim(words[8], "'"))
	_, err := client.Resource(kind).Namespace(words[1]).Patch(l.t.Context(), words[4], types.MergePatchType, patch, metav1.PatchOptions{})
	time.Sleep(5 * time.Minute)
	return err
}

var (
	layoutsUpdate = flag.Bool("layouts.update", false, "write the page of layouts anew")
	layoutsDir    = flag.String("layouts.dir", ownLayouts, "where layouts are; those of another directory are compared with no page")
)

const ownLayouts, layoutsPage = "../../../testdata/layouts", ownLayouts + "/README.md"

type verdict struct {
	layouts.Layout
	plan   planning.NodePlan
	lifted *planning.NodePlan // after the layout's remedy; nil: not needed, or there is none
}

// TestLayouts plans a roll of every layout, as it is and after its remedy, and compares the results with their page.
func TestLayouts(t *testing.T) {
	all := loadLayouts(t)
	verdicts := make([]verdict, len(all))
	t.Run("each", func(t *testing.T) {
		for i, layout := range all {
			t.Run(layout.Name, func(t *testing.T) {
				long(t)
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { verdicts[i] = judge(t, newLayoutLab(t, layout, nil)) })
			})
		}
	})
	if *layoutsDir != ownLayouts || slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Name == "" }) {
		return // only some were requested
	}
	require(t, len(all) >= 25, "only %d layouts", len(all))
	page := layoutPage(verdicts)
	if *layoutsUpdate {
		must(t, os.WriteFile(layoutsPage, []byte(page), 0o644))
		return
	}
	requireSame(t, string(readFile(t, layoutsPage)), page, "what is done with a layout has changed; "+
		"go test ./internal/sim/simtest -run TestLayouts -layouts.update writes it afresh (-page +now)")
}

func loadLayouts(t *testing.T) []layouts.Layout {
	all := valueOf(layouts.Load(*layoutsDir))(t)
	slices.SortFunc(all, func(a, b layouts.Layout) int { return strings.Compare(a.Name, b.Name) }) // as on the page
	return all
}

// judge plans the node's roll, and if it is not recreated, again after the remedy.
func judge(t *testing.T, l *layoutLab) verdict {
	v := verdict{Layout: l.of, plan: planOf(t, l.Lab, l.of.Node)}
	if isRecreated(v.plan) || !l.of.Lift.Helps() {
		return v
	}
	if *layoutsDir == ownLayouts {
		l.requirePrinted(v.plan)
	}
	l.lift()
	v.lifted = new(planOf(t, l.Lab, l.of.Node))
	return v
}

// requirePrinted fails the test unless the plan contains all the manual steps, word for word.
func (l *layoutLab) requirePrinted(plan planning.NodePlan) {
	var commands, config []string
	for _, o := range plan.ToRecreate {
		if o.Command != "" && !slices.Contains(commands, o.Command) {
			commands = append(commands, o.Command)
		}
		config = append(config, o.Config)
	}
	requireSame(l.t, strings.Join(l.of.Lift.Commands, " && "), strings.Join(commands, " && "), "commands (-file +plan)")
	want := l.of.Lift.Config
	require(l.t, want == "" || slices.Contains(config, want), "recast.yaml needs %s, and it says %v", want, config)
}

// TestLayoutsAreRolled rolls every layout as far as its remedy allows, and kills and resumes another such roll.
func TestLayoutsAreRolled(t *testing.T) {
	long(t)
	t.Parallel()
	for _, layout := range loadLayouts(t) {
		t.Run(layout.Name, func(t *testing.T) {
			t.Parallel()
			var secrets *talosapi.Cluster // of the undisturbed world, which comes first
			var plan planning.NodePlan
			var deletes string // the call by which recreate deletes the VM
			killGrid[*layoutLab]{
				begin: func(t *testing.T) *layoutLab {
					l := newLayoutLab(t, layout, secrets)
					v := judge(t, l)
					plan, secrets, l.before = *cmp.Or(v.lifted, &v.plan), l.Talos, l.shape()
					deletes = fmt.Sprintf("DELETE /api2/json/nodes/%s/qemu/%d", l.node.Host, l.node.VMID)
					return l
				},
				do: func(ctx context.Context, c *Client) error {
					if len(plan.Refused) > 0 { // with a reason
						return nil
					}
					return errOf(c.Roll(ctx, policyFor(layout.Node)))
				},
				journal: true,
				choose: func(t *testing.T, points []point) []point {
					switch {
					case len(plan.Refused) > 0:
						return nil
					case plan.Strategy == cluster.Recreate:
						return []point{namedPoint(t, points, deletes)}
					}
					return []point{points[len(points)/2]}
				},
				end: func(t *testing.T, l *layoutLab) string {
					if len(plan.Refused) > 0 {
						return ""
					}
					l.RequireIntact()
					requireNone(t, l.plan(policyFor(layout.Node)).Work(), "after the roll there is still something to do")
					requireSame(t, l.before, l.shape(), "the VM is not what it was (-before +now)")
					return l.settledDump()
				},
			}.killEverywhere(t)
		})
	}
}

func layoutPage(all []verdict) string {
	var rows strings.Builder
	now, after := 0, 0
	for _, v := range all {
		switch {
		case isRecreated(v.plan):
			now++
		case v.liftedToRecreate():
			after++
		}
		rows.WriteString(v.row())
	}
	n := len(all)
	return fmt.Sprintf(`# Clusters as people have them

Each file here is a world of the lab, made from the public sources that it names. A test plans a roll of one node, does what the last column
says, plans again, rolls, kills the roll in its middle, resumes it and compares. This page is what it saw: %s writes it afresh.

**%d of %d are recreated as they are, %d after what the last column says: %d %%.** The plan itself prints these commands, word for word.

| layout | strategy | why | what lifts it to recreate |
|---|---|---|---|
%s`, "`go test ./internal/sim/simtest -run TestLayouts -layouts.update`", now, n, after, (now+after)*100/n, rows.String())
}

func isRecreated(n planning.NodePlan) bool {
	return n.Strategy == cluster.Recreate && len(n.Refused) == 0
}

func (v verdict) liftedToRecreate() bool { return v.lifted != nil && isRecreated(*v.lifted) }

func (v verdict) row() string {
	strategy, why := string(v.plan.Strategy), v.plan.Why
	if len(v.plan.Refused) > 0 {
		strategy, why = "refused", strings.Join(v.plan.Refused, "; ")
	}
	_, reason, _ := strings.Cut(why, ": ")
	command := "–"
	switch {
	case isRecreated(v.plan):
		command = ""
	case v.liftedToRecreate():
		command = "`" + strings.Join(v.Lift.Commands, "`, `") + "`"
		if v.Lift.Config != "" {
			command += ", `" + v.Lift.Config + "` in recast.yaml and `recast lock`"
		}
		if v.Lift.Recast != "" {
			command += ", `" + v.Lift.Recast + "` on its line in recast.yaml"
		}
		command = strings.TrimPrefix(command, "``, ")
	case v.lifted != nil:
		command = "– (not even with its remedy)"
	}
	return fmt.Sprintf("| [%s](%s.yaml) | %s | %s | %s |\n", v.Name, v.Name, strategy, cell(masked(reason)), cell(command))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func bigVolume(kind, expr, more string) string {
	return "apiVersion: v1alpha1\nkind: " + kind + "\nname: big\n" + more + "provisioning:\n    diskSelector:\n        match: '" + expr + "'\n"
}

const nowhere, atLeast = `disk.transport == "nvme" && disk.size > 500u * GB`, "    minSize: 1GB\n"

// TestASelectorIsSaid: plan and config diff say what a document selects; what would leave no volume is refused.
func TestASelectorIsSaid(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const existing = "apiVersion: v1alpha1\nkind: ExistingVolumeConfig\nname: big\ndiscovery:\n    volumeSelector:\n        match: '"
		for name, tc := range map[string]struct {
			document string
			says     string
			refused  bool
		}{
			"user volume, nothing":    {bigVolume("UserVolumeConfig", nowhere, "") + atLeast, "no disk of VM 9031 matches the selector of UserVolumeConfig big", true},
			"raw volume, nothing":     {bigVolume("RawVolumeConfig", nowhere, "") + atLeast, "no disk of VM 9031 matches the selector of RawVolumeConfig big", true},
			"swap, nothing":           {bigVolume("SwapVolumeConfig", nowhere, "") + atLeast, "no disk of VM 9031 matches the selector of SwapVolumeConfig big", true},
			"user volume, two":        {bigVolume("UserVolumeConfig", "disk.size > 1u * GB && !disk.cdrom", "") + atLeast, "2 disks match the selector of UserVolumeConfig big (sda, sdb): Talos takes the first one with room; the selector of UserVolumeConfig big matches the system disk (sda)", false},
			"user volume, one":        {bigVolume("UserVolumeConfig", "!system_disk", "") + atLeast, "", false},
			"whole disk, the system":  {bigVolume("UserVolumeConfig", "disk.dev_path == \"/dev/sda\"", "volumeType: disk\n"), "matches the system disk (sda): which has partitions of Talos", true},
			"whole disk, two":         {bigVolume("UserVolumeConfig", "disk.transport == \"virtio\" && !disk.cdrom", "volumeType: disk\n"), "Talos refuses that for a whole disk", true},
			"whole disk, system_disk": {bigVolume("UserVolumeConfig", "!system_disk && disk.size > 1u * GB", "volumeType: disk\n"), "Talos can't evaluate the selector of UserVolumeConfig big: no such attribute(s): system_disk", true},
			"existing, nothing":       {existing + "volume.name == \"btrfs\"'\n", "no volume of VM 9031 matches the selector of ExistingVolumeConfig big", true},
			"existing, one":           {existing + "volume.partition_label == \"u-data\"'\n", "", false},
		} {
			files := lab.keptConfigs()
			files.document("wk1", tc.document)
			user := files.user(lab, firstRun)
			n := lab.planOf(user, "wk1", onlyWorker)
			refused, notes := strings.Join(n.Refused, "\n"), strings.Join(n.Notes, "\n")
			said := refused + notes
			require(t, (refused != "") == tc.refused && strings.Contains(said, tc.says) &&
				(tc.says != "" || !strings.Contains(said, "selector")), "%s: refused %q, notes %q", name, refused, notes)
			diffs := valueOf(connected(t.Context(), user, func(s *session) (configs.Diffs, error) {
				return configs.Compare(t.Context(), s.project, s.machines, "wk1")
			}))(t)
			all := strings.Join(diffs.Nodes[0].Notes, "\n")
			require(t, diffs.Differ == 1 && strings.Contains(all, tc.says) && (tc.says != "" || all == ""),
				"%s: config diff says %q", name, all)
			if tc.refused {
				requireFault(t, user.roll(onlyWorker)(t.Context()), fault.Refused)
				require(t, !strings.Contains(string(lab.configOf("wk1")), "name: big"), "%s: it has that configuration", name)
			}
		}
	})
}

// TestStuckVolumesOfEveryStrategy: a volume that Talos can't make keeps a node from being done, however it came.
func TestStuckVolumesOfEveryStrategy(t *testing.T) {
	const stuck = "its volume u-big is failed: no disks matched"
	type story struct {
		rolls   int // of which each fails
		prepare func(lab *Lab, files configFiles, big string) *Client
	}
	eachLong(t, oneWorker(), map[string]story{
		"recreate": {2, func(lab *Lab, files configFiles, big string) *Client {
			lab.Patch(sim.PatchedExtension)
			files.document("wk1", big)
			return files.user(lab, firstRun)
		}},
		"in place, staged": {2, func(lab *Lab, _ configFiles, big string) *Client {
			lab.patch(sim.PatchedExtension, "strategy: in-place")
			staged := cluster.Secret(string(lab.configOf("wk1")) + "\n---\n" + big)
			lab.talosctl("wk1", func(ctx context.Context, c *client.Client) error {
				_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: staged, Mode: machineapi.ApplyConfigurationRequest_STAGED})
				return err
			})
			return lab.as(firstRun)
		}},
		"reset": {1, func(lab *Lab, files configFiles, big string) *Client {
			lab.reset("wk1", "STATE") // it runs its file then, and drift names the volume
			files.document("wk1", big)
			return files.user(lab, firstRun)
		}},
	}, func(t *testing.T, lab *Lab, s story) {
		big := bigVolume("UserVolumeConfig", "!system_disk && !disk.cdrom", "") + "    minSize: 900GB\n"
		u := s.prepare(lab, lab.keptConfigs(), big)
		for i := range s.rolls {
			policy := onlyWorker
			if s.rolls == 1 {
				policy = lab.confirmed("wk1")
			}
			err := u.roll(policy)(t.Context())
			mustBe(t, err != nil && strings.Contains(err.Error(), stuck), "roll %d: %v", i+1, err)
		}
	})
}

// TestAVolumeThatNoDiskCanBe: the configuration has not arrived, with Talos' own error, and drift shows the volume.
func TestAVolumeThatNoDiskCanBe(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		big := bigVolume("UserVolumeConfig", "!system_disk && !disk.cdrom", "") + "    minSize: 900GB\n"
		const stuck = "its volume u-big is failed: no disks matched for volume (1 matched selector): 1 have not enough space, 0 have wrong format, 0 have other issues"
		files := lab.keptConfigs()
		was := files["wk1"]
		files.document("wk1", big)
		requireFault(t, files.user(lab, firstRun).roll(onlyWorker)(t.Context()), fault.Failed, stuck)
		require(t, !strings.Contains(string(lab.configOf("wk1")), "name: big"), "it keeps that configuration")
		lab.editConfig("wk1", strings.TrimRight(string(was), "\n"), strings.TrimRight(string(was), "\n")+"\n---\n"+big)
		for _, n := range lab.drift().Nodes {
			notes := strings.Join(n.Notes, "\n")
			require(t, strings.Contains(notes, stuck) == (n.Node == "wk1"), "%s: notes %q", n.Node, notes)
		}
	})
}

const userVolume = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\n"

// TestAFileThatCannotBeApplied is refused in the plan: Talos would not take it, or it lacks the
// volume on the data disk, whose partition the node would have without mounting it, so that pods
// would write elsewhere. The whole file is applied.
func TestAFileThatCannotBeApplied(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		whole := string(files["wk1"])
		for want, text := range map[string]string{
			"can't be applied: Talos would refuse it: ":                                              strings.Replace(whole, "machine:\n", "machine:\n    nonsense: hush\n", 1),
			"lacks UserVolumeConfig data, whose volume is on the disk sdb: put that document back, ": strings.Replace(whole, "---\n"+userVolumeIn(t, whole), "", 1),
		} {
			files["wk1"] = cluster.Secret(text)
			all := strings.Join(lab.planOf(files.user(lab, firstRun), "wk1", onlyWorker).Refused, "\n")
			require(t, strings.Contains(all, "its file in talos.machineConfigs "+want) && !strings.Contains(all, "hush"),
				"refused: %q, want %q", all, want)
		}
		files["wk1"] = cluster.Secret(whole)
		must(t, files.user(lab, secondRun).roll(onlyWorker)(t.Context()))
		lab.requireUserVolume()
	})
}

// TestUserVolumeIsAwaited: a node with an unmounted partition is not healthy before Talos manages the volume again.
func TestUserVolumeIsAwaited(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		user, edited := lab.Client(), false
		document := userVolumeIn(t, string(lab.configOf("wk1")))
		user.Emit = func(e step.Event) {
			if !edited && strings.Contains(e.Text, cluster.Settling) {
				edited = true
				lab.editConfig("wk1", "---\n"+document, "")
			}
		}
		requireError(t, user.roll(onlyWorker)(t.Context()), "persistent volume u-data is none")
		lab.RequireIntact()

		lab.editConfig("wk1", "version: v1alpha1\n", document+"---\nversion: v1alpha1\n")
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.requireUserVolume()
	})
}

func userVolumeIn(t *testing.T, config string) string {
	_, rest, found := strings.Cut(config, userVolume)
	mustBe(t, found, "no user volume in\n%s", config)
	rest, _, _ = strings.Cut(rest, "---\n")
	return userVolume + rest
}

func (l *Lab) requireUserVolume() {
	volumes := l.machine("wk1").Volumes
	managed := func(v cluster.Volume) bool { return v.Label == "u-data" && v.Phase == "ready" && v.Disk == "sdb" }
	require(l.t, slices.ContainsFunc(volumes, managed), "u-data is not ready on sdb: %+v", volumes)
}

// proxmoxVolume is a PersistentVolume of Proxmox' CSI driver on the storage fast of pve1.
func proxmoxVolume(name string) edit {
	return volume("pvc-proxmox", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "lab/pve1/fast/" + name,
	}}, func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil })
}

const podFile, podVolid = "9999/vm-9999-media.raw", "fast:" + podFile

// addPodDisk adds a pod's disk, whose name is not the driver's.
func addPodDisk(l *Lab) {
	must(l.t, l.World.AddLUN("fast", "pve1", podFile, 1<<30, world.NewMedia([]byte("films"))))
}

// detachOnDrain detaches the pod's disk from a node's VM soon after the node is cordoned, as the driver does.
func (l *Lab) detachOnDrain(node string, vmid int) {
	for {
		n, err := l.Kube.Node(l.t.Context(), node)
		if err != nil {
			return
		}
		if n.Spec.Unschedulable {
			break
		}
		time.Sleep(time.Second)
	}
	time.Sleep(10 * time.Second)
	err := l.World.SetConfig("", "pve1", world.ChangeRequest{ID: vmid, Delete: []string{"scsi7"}})
	require(l.t, err == nil, "detach: %v", err)
}

// TestAPodsDiskIsKnownByItsPersistentVolume rolls a node with a pod's disk whose name is not
// the driver's. It is detached by the drain; the run dies after the new VM's start, the pod's
// disk comes back meanwhile, and another process continues.
func TestAPodsDiskIsKnownByItsPersistentVolume(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		addPodDisk(lab)
		lab.World.Protect(world.Protected{Serial: "media", Media: lab.media(podVolid)})
		lab.EditVM(wk1, "scsi7", podVolid)
		proxmoxVolume(podFile)(lab)
		lab.patch(sim.PatchedExtension, "strategy: recreate")
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.Recreate)
		go lab.detachOnDrain("wk1", wk1)
		lab.Client().rollKilled(onServer("/qemu/9031/status/start POST"), onlyWorker)
		lab.EditVM(wk1, "scsi7", podVolid)
		lab.finish(t, rolls(onlyWorker))
		requireSame(t, podVolid+",size=1G", lab.vm(wk1).Config["scsi7"], "the pod's disk (-want +got)")
	})
}

// TestAPodsDiskComesToTheNextNode from the one before: no change since the plan, unlike a new drive of another kind.
func TestAPodsDiskComesToTheNextNode(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2}, map[string]bool{"a pod's": true, "someone's": false}, func(t *testing.T, lab *Lab, isPods bool) {
		addPodDisk(lab)
		if isPods {
			proxmoxVolume(podFile)(lab)
		}
		lab.Patch(sim.PatchedExtension)
		c := lab.Client().hears(whenStarted("wk1/bring-up", func() {
			lab.EditVM(9032, "scsi7", podVolid)
			if isPods {
				go lab.detachOnDrain("wk2", 9032)
			}
		}))
		_, err := c.Roll(t.Context(), policyFor("wk1", "wk2"))
		mustBe(t, isPods && err == nil || !isPods && fault.CodeOf(err) == fault.PlanMoved, "err = %v", err)
	})
}

// TestRecreateOnEveryBus: whatever Talos shows of a disk on that bus, a recreated node is
// installed on its new disk, and the next roll recognizes that disk. Proxmox keeps a drive as
// written by hand until it writes it itself, in its normal form: that is the same drive.
func TestRecreateOnEveryBus(t *testing.T) {
	type story struct {
		bus   string
		bring edit
	}
	byHand := func(l *Lab) {
		l.World.WriteByHand(wk1, "scsi0", "iothread=on,discard=on,ssd=yes,file="+wk1System+",serial=sys-wk1,backup=no,size=10G")
		l.World.WriteByHand(wk1, "scsi1", "volume="+wk1Data+",iothread=on,discard=on,ssd=TRUE,serial=data-wk1,backup=on,size=20480M")
	}
	o := func(s story) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, DiskBus: s.bus} }
	eachLongIn(t, o, map[string]story{
		"virtio-scsi-single": {"scsi", all()},
		"virtio-scsi-pci":    {"scsi", whileOff(change("scsihw=virtio-scsi-pci"))},
		"two disks of one size, no system serial": {"scsi", whileOff(
			change("scsi0="+wk1System, "scsi2=fast:20,serial=other"))},
		"LSI, told by WWN": {"scsi", whileOff(change("scsihw=lsi", "scsi0="+wk1SystemDrive+",wwn=0x5000000000000001",
			"scsi1="+wk1Data+",serial=data-wk1,wwn=0x5000000000000002", "scsi2=fast:20,serial=other,wwn=0x5000000000000003"))},
		"virtio-blk":               {"virtio", all()},
		"SATA":                     {"sata", all()},
		"IDE":                      {"ide", all()},
		"written by hand":          {"scsi", byHand},
		"written by hand, reimage": {"scsi", all(strategy(cluster.Reimage), byHand)},
	}, func(t *testing.T, lab *Lab, s story) {
		s.bring(lab)
		for _, run := range []string{firstRun, secondRun} {
			lab.Patch(sim.PatchedExtension)
			rep := lab.as(run).mustRoll(onlyWorker)
			mustBe(t, rep.Outcome == "done", "%s: %s", run, rep.Outcome)
			drive := lab.vm(wk1).Config[s.bus+"0"]
			require(t, strings.Contains(drive, "serial=recast-") && strings.Contains(drive, ",wwn=0x3") == (s.bus != "virtio"),
				"its system disk is %s", drive)
		}
	})
}

// withoutSerials are workers with two data disks as Proxmox' own dialogue makes them.
func withoutSerials(bus, scsihw string) sim.Options {
	return sim.Options{ControlPlanes: 1, Workers: 1, Layouts: []sim.Layout{{Data: 2}, {Bus: bus, SCSI: scsihw, Data: 2, NoSerials: true}}}
}

// TestRecreateWithoutSerials: a node whose drives have no serial= is recreated by its drives' addresses, sizes and
// content. A resume after a crash, with the journal or without, proves the same, and no drive gets another option.
func TestRecreateWithoutSerials(t *testing.T) {
	for name, o := range map[string]sim.Options{
		"virtio-scsi-single": withoutSerials("scsi", ""),
		"virtio-scsi-pci":    withoutSerials("scsi", "virtio-scsi-pci"),
		"LSI":                withoutSerials("scsi", "lsi"),
		"virtio-blk":         withoutSerials("virtio", ""),
		"SATA":               withoutSerials("sata", ""),
	} {
		t.Run(name, func(t *testing.T) {
			long(t)
			t.Parallel()
			killGrid[identified]{
				begin: func(t *testing.T) identified {
					lab := New(t, o)
					lab.Patch(sim.PatchedExtension)
					requirePlanned(t, planOf(t, lab, "wk1"), cluster.Recreate)
					return identified{lab, dataDrives(lab)}
				},
				do: rolls(planning.Policy{}),
				choose: func(t *testing.T, points []point) (some []point) {
					first := namedPoint(t, points, "move_disk").at - 1
					for i := range 6 {
						some = append(some, points[first+i*(len(points)-first-1)/6])
					}
					return everyPoint(t, some)
				},
				end: func(t *testing.T, lab identified) string {
					requireInSync(t, lab.Lab)
					requireSame(t, lab.drives, dataDrives(lab.Lab), "the drives' options changed")
					return ""
				},
			}.killEverywhere(t)
		})
	}
}

type identified struct {
	*Lab
	drives map[string]string
}

func dataDrives(lab *Lab) map[string]string {
	out := map[string]string{}
	for key, value := range lab.vm(wk1).Config {
		if d, err := cluster.ParseDisk(key, value); err == nil && d.Bootable() && !strings.Contains(value, "serial=recast-") && !strings.HasSuffix(key, "0") {
			_, out[key], _ = strings.Cut(value, ",")
		}
	}
	return out
}

// TestSwappedDisksWithoutSerialsGetNoConfiguration: only the content shows that two drives have swapped volumes.
func TestSwappedDisksWithoutSerialsGetNoConfiguration(t *testing.T) {
	inLongLab(t, withoutSerials("scsi", ""), func(t *testing.T, lab *Lab) {
		must(t, errOf(lab.World.Resize("", "pve1", world.ResizeRequest{ID: wk1, Disk: "scsi1", Size: "+1G"})))
		whileOff()(lab)
		lab.Patch(sim.PatchedExtension)
		swap := func() {
			c := lab.vm(wk1).Config
			change("protection=0")(lab)
			remove("scsi1", "scsi2")(lab)
			change("scsi1="+c["scsi2"], "scsi2="+c["scsi1"], "protection=1")(lab)
		}
		var swapped, applied atomic.Bool
		lab.Recorder.Hooks(func(call record.Call) error {
			if strings.HasSuffix(call.Path, "/qemu/9031/status/start") && swapped.CompareAndSwap(false, true) {
				swap()
			}
			if strings.HasSuffix(call.Method, "/ApplyConfiguration") {
				applied.Store(true)
			}
			return nil
		}, nil)
		err := lab.Client().roll(onlyWorker)(t.Context())
		requireRefused(t, err, "the persistent volume u-data with partition UUID")
		requireRefused(t, err, "is on sdc, and not on sdb, which is scsi1")
		mustBe(t, !applied.Load() && swapped.Load(), "swapped %t, configured %t", swapped.Load(), applied.Load())
		require(t, !lab.vm(wk1).Running, "the machine with the wrong disks runs")
		lab.Recorder.Hooks(nil, nil)
		swap()
		lab.Client().rollTo(t, onlyWorker)
	})
}

// TestOneVolumeInTwoSlots: a VM whose system disk and data disk stand in a second slot each (as
// proxmox-csi-plugin#363 did it) is rebooted by nothing, for one reason, until its one command has run.
func TestOneVolumeInTwoSlots(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const want = "the volume of scsi0 is also scsi5, the volume of scsi1 is also scsi6: qm set 9031 --delete scsi5,scsi6 keeps the volume"
		change("scsi5="+wk1System+",backup=0,iothread=1", "scsi6="+wk1Data+",backup=0,iothread=1")(lab)
		refused := func(what string, c *Client, strategy cluster.Strategy) {
			n := lab.planOf(c, "wk1", planning.Policy{})
			require(t, len(n.Refused) == 1 && strings.HasSuffix(n.Refused[0], want) && n.Strategy == strategy,
				"%s: planned as %q, refused %q", what, n.Strategy, n.Refused)
		}
		files := lab.keptConfigs()
		files.set(t, "wk1", noReboot)
		requirePlanned(t, lab.planOf(files.user(lab, firstRun), "wk1", planning.Policy{}), cluster.ApplyConfig)
		files = lab.keptConfigs()
		files.set(t, "wk1", needsReboot)
		refused("a configuration with a reboot", files.user(lab, firstRun), cluster.ApplyConfig)
		lab.Patch(sim.PatchedExtension)
		refused("auto", lab.Client(), cluster.Auto)
		lab.inPlace()
		refused("in-place", lab.Client(), cluster.InPlace)
		boots := lab.boots()
		err := lab.Client().roll(onlyWorker)(t.Context())
		require(t, err != nil && slices.Equal(boots, lab.boots()), "rolled: %v", err)
		res := diagnosis(t, lab.Client())
		require(t, slices.ContainsFunc(res.Checks, func(c checkup.Check) bool {
			return c.State == checkup.Problem && c.What == "wk1" && strings.HasSuffix(c.Seen, want)
		}), "doctor sees %q", problems(res))
		lab.typed(t, "qm set 9031 --delete scsi5,scsi6")
		requireNone(t, planOf(t, lab, "wk1").Refused, "afterwards")
	})
}

// TestAVolumeInTheSlotsOfTwoVMs: what the printed commands do leaves the volume with the node.
func TestAVolumeInTheSlotsOfTwoVMs(t *testing.T) {
	long(t)
	type story struct {
		bring edit
		want  string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"another VM, off":        {func(l *Lab) { l.DefineVM(9050, map[string]string{"name": "copy", "scsi0": wk1Data}) }, "the volume of scsi1 is also scsi0 of VM 9050: qm set 9050 --delete scsi0"},
		"the other slot is used": {whileOff(change("sata3=" + wk1Data)), "the volume of sata3 is also scsi1: qm set 9031 --delete scsi1"}, // the kernel names sata3 first, so Talos uses that
		"by its path": {
			change("scsi5=/mnt/pve/fast/images/" + strings.TrimPrefix(wk1Data, "fast:")),
			"the volume of scsi1 is also scsi5: qm set 9031 --delete scsi5",
		},
		"detached": {func(l *Lab) { l.World.WriteByHand(wk1, "unused3", wk1Data) }, "the volume of scsi1 is also unused3: qm disk rescan --vmid 9031"},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		s.bring(lab)
		n := planOf(t, lab, "wk1")
		mustBe(t, len(n.Refused) == 1 && strings.HasSuffix(n.Refused[0], s.want+" keeps the volume"), "refused %q", n.Refused)
		_, command, _ := strings.Cut(s.want, ": ")
		lab.typed(t, command)
		requirePlanned(t, planOf(t, lab, "wk1"), cluster.Recreate)
	})
}

// typed runs commands on the Proxmox host, and gives machines that they restart the time to be back.
func (l *Lab) typed(t *testing.T, commands string) {
	for command := range strings.SplitSeq(commands, " && ") {
		out, err := l.Shell("pve1").Run(strings.Fields(command))
		mustBe(t, err == nil, "%s: %v\n%s", command, err, out)
	}
	l.World.Delay(3 * time.Minute)
}

func partitioned(volid string, added ...artefact.Partition) edit {
	return partitions(volid, func(p []artefact.Partition) []artefact.Partition { return append(p, added...) })
}

func unpartitioned(volid string, n int) edit {
	return partitions(volid, func(p []artefact.Partition) []artefact.Partition { return p[:len(p)-n] })
}

func partitions(volid string, change func([]artefact.Partition) []artefact.Partition) edit {
	return func(l *Lab) {
		media := l.media(volid)
		disk := valueOf(artefact.ReadDisk(media.Bytes()))(l.t)
		disk.Partitions = change(disk.Partitions)
		media.Write(artefact.WriteDisk(disk))
	}
}

func labelled(label string) artefact.Partition {
	return artefact.Partition{Label: label, UUID: "0b5f0000-0000-4000-8000-000000000001", Filesystem: "xfs", FilesystemUUID: "0b5f0000-0000-4000-8000-000000000002"}
}

func (l *Lab) labels(volid string) []string {
	disk := valueOf(artefact.ReadDisk(l.media(volid).Bytes()))(l.t)
	return ofEach(disk.Partitions, func(p artefact.Partition) string { return p.Label })
}

func (l *Lab) media(volid string) *world.Media {
	m := l.World.Media(volid, "pve1")
	mustBe(l.t, m != nil, "there is no %s", volid)
	return m
}
