package simtest

import (
	"errors"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// meanwhile acts after a drain has lasted d.
func meanwhile(d time.Duration, act func(*talosScene)) func(*talosScene) {
	return func(s *talosScene) { time.AfterFunc(d, func() { act(s) }) }
}

// dropped is an object that a person deletes.
func dropped(r schema.GroupVersionResource, namespace, name string) func(*talosScene) {
	return func(s *talosScene) { without(r, namespace, name)(s.Lab) }
}

// shop is a workload of one pod, on the rolled node.
func shop(*appsv1.Deployment) {}

// stubborn has a process that ignores SIGTERM.
func stubborn(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
}

// guarded has pods with a program's finalizer.
func guarded(d *appsv1.Deployment) { d.Spec.Template.Finalizers = []string{"example.com/guard"} }

func inNamespace(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Namespace = name }
}

func podsOf(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: app, Image: app}},
		},
	}
}

func selecting(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func deployed(edits ...func(*appsv1.Deployment)) func(*talosScene) {
	return func(s *talosScene) {
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: corev1.NamespaceDefault},
			Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(1)), Selector: selecting("shop"), Template: podsOf("shop"),
			},
		}
		for _, edit := range edits {
			edit(d)
		}
		if d.Namespace != corev1.NamespaceDefault {
			s.put(store.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.Namespace}})
		}
		s.put(store.Deployments(), d)
		time.Sleep(20 * time.Second)
	}
}

// stateful is a workload whose pod always has the same name.
func stateful(s *talosScene) {
	s.put(store.StatefulSets(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: corev1.NamespaceDefault},
		Spec:       appsv1.StatefulSetSpec{Selector: selecting("db"), Template: podsOf("db")},
	})
	time.Sleep(20 * time.Second)
}

func bare(s *talosScene) {
	s.put(store.Pods(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: corev1.NamespaceDefault},
		Spec:       corev1.PodSpec{NodeName: s.rolls, Containers: []corev1.Container{{Name: "bare", Image: "bare"}}},
	})
}

func gone(pod string) func(*talosScene) {
	return func(s *talosScene) {
		dropped(store.Pods(), corev1.NamespaceDefault, pod)(s)
		time.Sleep(5 * time.Second)
	}
}

// unguarded removes the finalizer from the pods.
func unguarded(s *talosScene) {
	update := func(r schema.GroupVersionResource, o store.Object) {
		must(s.t, errOf(s.Kube.Store().Update(s.t.Context(), r, o, store.Main)))
	}
	d := s.stored(store.Deployments(), corev1.NamespaceDefault, "shop")
	fresh := d.(*appsv1.Deployment).DeepCopy()
	fresh.Spec.Template.Finalizers = nil
	update(store.Deployments(), fresh)
	time.Sleep(5 * time.Second)
	pods := s.allStored(store.Pods(), corev1.NamespaceDefault)
	for _, p := range pods {
		fresh := p.(*corev1.Pod).DeepCopy()
		fresh.Finalizers = nil
		update(store.Pods(), fresh)
	}
	time.Sleep(5 * time.Second)
}

// budgeted protects the shop's pod for ever.
func budgeted(name string) func(*talosScene) {
	return func(s *talosScene) {
		s.put(store.Budgets(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceDefault},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: new(intstr.FromInt32(1)), Selector: selecting("shop"),
			},
		})
		time.Sleep(5 * time.Second)
	}
}

func unbudgeted(name string) func(*talosScene) {
	return dropped(store.Budgets(), corev1.NamespaceDefault, name)
}

// kubeletDies stops only the kubelet; the machine and its API run.
func kubeletDies(s *talosScene) { s.Kube.NodeDown(s.rolled().UUID) }

func apiAway(s *talosScene) {
	s.Recorder.Hooks(func(c record.Call) error {
		if c.Proto == "kubernetes" {
			return errors.New("connection reset by peer")
		}
		return nil
	}, nil)
}

func apiBack(s *talosScene) { s.Recorder.Hooks(nil, nil) }

// asUserWithout is a kubeconfig of a user who may do everything except create that
// resource.
func asUserWithout(resource string) func(*talosScene) {
	return func(s *talosScene) {
		s.Kube.Grant("recast", func(r kubeapi.Request) bool { return r.Resource != resource })
		s.useKubeconfig("recast", time.Hour)
	}
}

func expiringKubeconfig(life time.Duration) func(*talosScene) {
	return func(s *talosScene) { s.useKubeconfig("system:masters", life) }
}

func (s *talosScene) useKubeconfig(group string, life time.Duration) {
	s.keep("kubeconfig")
	b, err := s.Kubeconfig(group, life)
	must(s.t, err)
	s.Write("kubeconfig", b)
}

// podDisk attaches a volume to the VM as a CSI driver does.
func podDisk(s *talosScene) {
	must(s.t, s.World.AddLUN("fast", "pve1", "9999/vm-9999-pvc-0b5f.raw", 1<<30, world.NewMedia(nil)))
	s.EditVM(s.rolled().VMID, "scsi7", "fast:9999/vm-9999-pvc-0b5f.raw")
	proxmoxVolume("9999/vm-9999-pvc-0b5f.raw")(s.Lab)
}

func podDiskGone(s *talosScene) {
	must(s.t, s.World.SetConfig("", "pve1", world.ChangeRequest{ID: s.rolled().VMID, Delete: []string{"scsi7"}}))
}

// podDiskFreed deletes its claim.
func podDiskFreed(s *talosScene) {
	s.done(s.World.DeleteVolume("", "pve1", "fast:9999/vm-9999-pvc-0b5f.raw"))
}

// attached is a volume that its driver can't detach.
func attached(s *talosScene) {
	s.put(store.Volumes(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: corev1.NamespaceDefault, Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "disk-1"}},
		},
	})
	s.put(store.Attachments(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: s.rolls, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-1")}},
		Status: storagev1.VolumeAttachmentStatus{
			Attached: true, DetachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = disk is busy"},
		},
	})
}

// agent is a DaemonSet whose pod uses a volume that its driver shares among nodes.
func agent(s *talosScene) {
	s.put(store.Volumes(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-2"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			ClaimRef:               &corev1.ObjectReference{Namespace: corev1.NamespaceDefault, Name: "agent"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "cephfs.csi.ceph.com", VolumeHandle: "0001-0009-agent"}},
		},
	})
	s.put(store.Claims(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: corev1.NamespaceDefault}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-2"},
	})
	pods := podsOf("agent")
	pods.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "agent"},
	}}}
	s.put(store.DaemonSets(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: corev1.NamespaceDefault},
		Spec:       appsv1.DaemonSetSpec{Selector: selecting("agent"), Template: pods},
	})
	time.Sleep(20 * time.Second)
	c := s.session()
	defer c.end()
	volumes, err := c.machines.Kube.AttachedVolumes(s.t.Context(), s.rolls)
	must(s.t, err)
	if len(volumes) != 1 || !strings.HasPrefix(volumes[0].User, "DaemonSet pod default/agent-") {
		s.t.Errorf("attached: %+v", volumes)
	}
}
