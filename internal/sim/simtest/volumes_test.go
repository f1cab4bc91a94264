package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/configs"
)

// bigVolume is a document whose selector has that expression.
func bigVolume(kind, expr, more string) string {
	return "apiVersion: v1alpha1\nkind: " + kind + "\nname: big\n" + more + "provisioning:\n    diskSelector:\n        match: '" + expr + "'\n"
}

const (
	nowhere = `disk.transport == "nvme" && disk.size > 500u * GB`
	atLeast = "    minSize: 1GB\n"
)

// TestASelectorIsSaid: plan and config diff say what a document of each kind selects, and the plan refuses what would
// leave the node without a volume; where all is well, nothing is said.
func TestASelectorIsSaid(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
			if (refused != "") != tc.refused || !strings.Contains(said, tc.says) || tc.says == "" && strings.Contains(said, "selector") {
				t.Errorf("%s: refused %q, notes %q", name, refused, notes)
			}
			diffs := valueOf(connected(t.Context(), user, func(s *session) (configs.Diffs, error) {
				return configs.Compare(t.Context(), s.project, s.machines, "wk1")
			}))(t)
			if all := strings.Join(diffs.Nodes[0].Notes, "\n"); diffs.Differ != 1 || !strings.Contains(all, tc.says) || tc.says == "" && all != "" {
				t.Errorf("%s: config diff says %q", name, all)
			}
			if tc.refused {
				if err := user.roll(onlyWorker)(t.Context()); fault.KindOf(err) != fault.Refused || strings.Contains(string(lab.configOf("wk1")), "name: big") {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		lab.RequireIntact()
	})
}

// TestStuckVolumesOfEveryStrategy: a volume that Talos can't make keeps a node from being done, in the run that
// brought it and in one that goes on with it, by whatever way it came.
func TestStuckVolumesOfEveryStrategy(t *testing.T) {
	const stuck = "its volume u-big is failed: no disks matched"
	for name, prepare := range map[string]func(t *testing.T, lab *Lab, files configFiles, big string) *Client{
		"recreate": func(_ *testing.T, lab *Lab, files configFiles, big string) *Client {
			lab.Patch(sim.PatchedExtension)
			files.document("wk1", big)
			return files.user(lab, firstRun)
		},
		"in place, staged": func(_ *testing.T, lab *Lab, _ configFiles, big string) *Client {
			lab.Patch(sim.PatchedExtension)
			lab.setRoll("strategy: in-place")
			staged := cluster.Secret(string(lab.configOf("wk1")) + "\n---\n" + big)
			lab.talosctl("wk1", func(ctx context.Context, c *client.Client) error {
				_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: staged, Mode: machineapi.ApplyConfigurationRequest_STAGED})
				return err
			})
			return lab.as(firstRun)
		},
		"reset": func(_ *testing.T, lab *Lab, files configFiles, big string) *Client {
			lab.reset("wk1", "STATE")
			files.document("wk1", big)
			return files.user(lab, firstRun)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				u := prepare(t, lab, lab.keptConfigs(), bigVolume("UserVolumeConfig", "!system_disk && !disk.cdrom", "")+"    minSize: 900GB\n")
				runs := 2
				if name == "reset" { // it runs its file then, and drift names the volume
					runs = 1
				}
				for i := range runs {
					if err := u.roll(onlyWorker)(t.Context()); err == nil || !strings.Contains(err.Error(), stuck) {
						t.Fatalf("roll %d: %v", i+1, err)
					}
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestAVolumeThatNoDiskCanBe: a configuration with such a volume has not arrived, with Talos' own error, and
// drift shows a volume that Talos can't make, whoever asked for it.
func TestAVolumeThatNoDiskCanBe(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		big := bigVolume("UserVolumeConfig", "!system_disk && !disk.cdrom", "") + "    minSize: 900GB\n"
		const stuck = "its volume u-big is failed: no disks matched for volume (1 matched selector): 1 have not enough space, 0 have wrong format, 0 have other issues"
		files := lab.keptConfigs()
		was := files["wk1"]
		files.document("wk1", big)
		err := files.user(lab, firstRun).roll(onlyWorker)(t.Context())
		mustBe(t, err != nil && fault.KindOf(err) == fault.Failed && strings.Contains(err.Error(), stuck), "err = %v", err)
		text := string(lab.configOf("wk1"))
		require(t, !strings.Contains(text, "name: big"), "it keeps that configuration")
		lab.editConfig("wk1", strings.TrimRight(string(was), "\n"), strings.TrimRight(string(was), "\n")+"\n---\n"+big)
		d := lab.drift()
		for _, n := range d.Nodes {
			notes := strings.Join(n.Notes, "\n")
			require(t, strings.Contains(notes, stuck) == (n.Node == "wk1"), "%s: notes %q", n.Node, notes)
		}
		lab.RequireIntact()
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
		lab.RequireIntact()
	})
}

// TestUserVolumeIsAwaited: a node with an unmounted partition is not healthy before Talos
// manages the volume again.
func TestUserVolumeIsAwaited(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
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
		lab.RequireIntact()
	})
}

// userVolumeIn is the document of the user volume in a configuration.
func userVolumeIn(t *testing.T, config string) string {
	t.Helper()
	_, rest, found := strings.Cut(config, userVolume)
	mustBe(t, found, "no user volume in\n%s", config)
	rest, _, _ = strings.Cut(rest, "---\n")
	return userVolume + rest
}

// requireUserVolume fails the test unless Talos manages the volume on wk1's data disk.
func (l *Lab) requireUserVolume() {
	l.t.Helper()
	volumes := l.machine("wk1").Volumes
	if !slices.ContainsFunc(volumes, func(v cluster.Volume) bool { return v.Label == "u-data" && v.Phase == "ready" && v.Disk == "sdb" }) {
		l.t.Errorf("u-data is not ready on sdb: %+v", volumes)
	}
}

// proxmoxVolume is a PersistentVolume of Proxmox' CSI driver on the storage fast of pve1.
func proxmoxVolume(name string) edit {
	return volume("pvc-proxmox", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "lab/pve1/fast/" + name,
	}}, func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil })
}

const (
	podFile  = "9999/vm-9999-media.raw" // a pod's disk, whose name is not the driver's
	podVolid = "fast:" + podFile
)

func addPodDisk(l *Lab) {
	l.t.Helper()
	must(l.t, l.World.AddLUN("fast", "pve1", podFile, 1<<30, world.NewMedia([]byte("films"))))
}

// detachOnDrain detaches the pod's disk from a node's VM soon after the node is cordoned, as
// the driver does.
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
	if err := l.World.SetConfig("", "pve1", world.ChangeRequest{ID: vmid, Delete: []string{"scsi7"}}); err != nil {
		l.t.Errorf("detach: %v", err)
	}
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
		lab.Patch(sim.PatchedExtension)
		strategy(cluster.Recreate)(lab)
		n := planOf(t, lab, "wk1")
		mustBe(t, len(n.Refused) == 0 && n.Strategy == cluster.Recreate, "%s, refused %q", n.Strategy, n.Refused)
		go lab.detachOnDrain("wk1", wk1)
		lab.Client().rollKilled(onServer("/qemu/9031/status/start POST"), onlyWorker)
		lab.EditVM(wk1, "scsi7", podVolid)
		lab.finish(t, rolls(onlyWorker))
		lab.RequireIntact()
		requireSame(t, podVolid+",size=1G", lab.vm(wk1).Config["scsi7"], "the pod's disk (-want +got)")
	})
}

// TestAPodsDiskComesToTheNextNode when the previous one is drained: that is no change
// since the plan, but a new drive of another kind is.
func TestAPodsDiskComesToTheNextNode(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2}, map[string]bool{"a pod's": true, "someone's": false}, func(t *testing.T, lab *Lab, isPods bool) {
		addPodDisk(lab)
		if isPods {
			proxmoxVolume(podFile)(lab)
		}
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Emit = whenStarted("wk1/bring-up", func() {
			lab.EditVM(9032, "scsi7", podVolid)
			if isPods {
				go lab.detachOnDrain("wk2", 9032)
			}
		})
		_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1", "wk2"}})
		if isPods && err != nil || !isPods && fault.CodeOf(err) != fault.PlanMoved {
			t.Fatal(err)
		}
		lab.RequireIntact()
	})
}
