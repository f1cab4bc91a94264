package simtest

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// proxmoxVolume is a PersistentVolume of Proxmox' CSI driver on the storage fast of pve1.
func proxmoxVolume(name string) edit {
	return volume("pvc-proxmox", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "lab/pve1/fast/" + name,
	}}, func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = nil })
}

// TestAPodsDiskIsKnownByItsPersistentVolume rolls a node with a pod's disk whose name is not
// the driver's. It is detached by the drain; the run dies after the new VM's start, the pod's
// disk comes back meanwhile, and another process continues.
func TestAPodsDiskIsKnownByItsPersistentVolume(t *testing.T) {
	const volid = "fast:9999/vm-9999-media.raw"
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.World.AddLUN("fast", "pve1", "9999/vm-9999-media.raw", 1<<30, world.NewMedia([]byte("films"))))
		lab.World.Protect(world.Protected{Serial: "media", Media: lab.World.Media(volid, "pve1")})
		lab.EditVM(wk1, "scsi7", volid)
		proxmoxVolume("9999/vm-9999-media.raw")(lab)
		lab.Patch(sim.PatchedExtension)
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: recreate\n")
		if n := planOf(t, lab, "wk1"); len(n.Refused) > 0 || n.Strategy != cluster.Recreate {
			t.Fatalf("%s, refused %q", n.Strategy, n.Refused)
		}
		go func() { // the driver
			for {
				n, err := lab.Kube.Node(t.Context(), "wk1")
				if err != nil {
					return
				}
				if n.Spec.Unschedulable {
					break
				}
				time.Sleep(time.Second)
			}
			time.Sleep(10 * time.Second)
			if err := lab.World.SetConfig("", "pve1", world.ChangeRequest{ID: wk1, Delete: []string{"scsi7"}}); err != nil {
				t.Errorf("detach: %v", err)
			}
		}()
		only := planning.Policy{Only: []string{"wk1"}}
		if _, _, err := lab.rollKilled(t.Context(), only, 0, "/qemu/9031/status/start"); err == nil {
			t.Fatal("the roll was not killed")
		}
		lab.EditVM(wk1, "scsi7", volid)
		if _, broken, err := lab.rollKilled(t.Context(), only, 0, ""); err != nil || len(broken) > 0 {
			t.Fatalf("resumed: %v, broken: %q", err, broken)
		}
		lab.RequireIntact()
		vm, err := lab.World.LookupVM("pve1", wk1)
		if err != nil || vm.Config["scsi7"] != volid+",size=1G" {
			t.Errorf("the pod's disk: %q, %v", vm.Config["scsi7"], err)
		}
	})
}

// TestAPodsDiskComesToTheNextNode when the previous one is drained: that is no change
// since the plan, but a new drive of another kind is.
func TestAPodsDiskComesToTheNextNode(t *testing.T) {
	const volid = "fast:9999/vm-9999-media.raw"
	eachInLab(t, sim.Options{Workers: 2}, map[string]bool{"a pod's": true, "someone's": false}, func(t *testing.T, lab *Lab, isPods bool) {
		must(t, lab.World.AddLUN("fast", "pve1", "9999/vm-9999-media.raw", 1<<30, world.NewMedia([]byte("films"))))
		if isPods {
			proxmoxVolume("9999/vm-9999-media.raw")(lab)
		}
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Emit = whenStarted("wk1/bring-up", func() { lab.EditVM(9032, "scsi7", volid) })
		if isPods {
			c.Emit = whenStarted("wk1/bring-up", func() {
				lab.EditVM(9032, "scsi7", volid)
				go func() { // the driver
					for n, err := lab.Kube.Node(t.Context(), "wk2"); err == nil && !n.Spec.Unschedulable; n, err = lab.Kube.Node(t.Context(), "wk2") {
						time.Sleep(time.Second)
					}
					if err := lab.World.SetConfig("", "pve1", world.ChangeRequest{ID: 9032, Delete: []string{"scsi7"}}); err != nil {
						t.Errorf("detach: %v", err)
					}
				}()
			})
		}
		_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1", "wk2"}})
		if isPods && err != nil || !isPods && fault.CodeOf(err) != fault.PlanMoved {
			t.Fatal(err)
		}
		lab.RequireIntact()
	})
}

// A disk that is named like a pod's but is in no PersistentVolume is never dropped: the plan refuses it.
func TestADiskNamedAsAPodsIsRefused(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.World.AddLUN("fast", "pve1", "9999/vm-9999-pvc-0b5f.raw", 1<<30, world.NewMedia(nil)))
		lab.EditVM(wk1, "scsi7", "fast:9999/vm-9999-pvc-0b5f.raw")
		lab.Patch(sim.PatchedExtension)
		n := planOf(t, lab, "wk1")
		if n.Strategy != cluster.InPlace || len(n.ToRecreate) != 1 || n.ToRecreate[0].Command != "qm set 9031 --delete scsi7" {
			t.Errorf("%s, to recreate: %+v", n.Strategy, n.ToRecreate)
		}
	})
}
