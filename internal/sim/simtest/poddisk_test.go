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
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		addPodDisk(lab)
		lab.World.Protect(world.Protected{Serial: "media", Media: lab.media(podVolid)})
		lab.EditVM(wk1, "scsi7", podVolid)
		proxmoxVolume(podFile)(lab)
		lab.Patch(sim.PatchedExtension)
		strategy(cluster.Recreate)(lab)
		if n := planOf(t, lab, "wk1"); len(n.Refused) > 0 || n.Strategy != cluster.Recreate {
			t.Fatalf("%s, refused %q", n.Strategy, n.Refused)
		}
		go lab.detachOnDrain("wk1", wk1)
		c := lab.Client()
		c.killedAt(t, onServer("/qemu/9031/status/start POST"), c.roll(onlyWorker))
		lab.EditVM(wk1, "scsi7", podVolid)
		lab.finish(t, rolls(onlyWorker))
		lab.RequireIntact()
		if drive := lab.vm(wk1).Config["scsi7"]; drive != podVolid+",size=1G" {
			t.Errorf("the pod's disk: %q", drive)
		}
	})
}

// TestAPodsDiskComesToTheNextNode when the previous one is drained: that is no change
// since the plan, but a new drive of another kind is.
func TestAPodsDiskComesToTheNextNode(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{Workers: 2}, map[string]bool{"a pod's": true, "someone's": false}, func(t *testing.T, lab *Lab, isPods bool) {
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
