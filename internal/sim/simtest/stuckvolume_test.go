package simtest

import (
	"context"
	"strings"
	"testing"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
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
			diffs, err := connected(t.Context(), user, func(s *session) (configs.Diffs, error) {
				return configs.Compare(t.Context(), s.project, s.machines, "wk1")
			})
			must(t, err)
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
		if err == nil || fault.KindOf(err) != fault.Failed || !strings.Contains(err.Error(), stuck) {
			t.Fatalf("err = %v", err)
		}
		if text := string(lab.configOf("wk1")); strings.Contains(text, "name: big") {
			t.Error("it keeps that configuration")
		}
		lab.editConfig("wk1", strings.TrimRight(string(was), "\n"), strings.TrimRight(string(was), "\n")+"\n---\n"+big)
		d, err := lab.Client().Drift(t.Context())
		must(t, err)
		for _, n := range d.Nodes {
			if notes := strings.Join(n.Notes, "\n"); strings.Contains(notes, stuck) != (n.Node == "wk1") {
				t.Errorf("%s: notes %q", n.Node, notes)
			}
		}
		lab.RequireIntact()
	})
}
