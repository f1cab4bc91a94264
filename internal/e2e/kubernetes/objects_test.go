package kubernetes

import (
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// now deletes a pod without a grace period.
var now = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// check ends the test on an error of the test's own client.
func (s *scene) check(err error) {
	s.t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		s.t.Error(err)
	}
}

func (s *scene) nodes() []corev1.Node {
	s.t.Helper()
	list, err := s.plane.Client.CoreV1().Nodes().List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Error(err)
		return nil
	}
	return list.Items
}

// node is the worker's Node, nil if there is none.
func (s *scene) node() *corev1.Node {
	for _, n := range s.nodes() {
		if n.Name == target {
			return &n
		}
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// edit changes the worker's Node.
func (s *scene) edit(change func(*corev1.Node)) {
	s.t.Helper()
	s.check(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n := s.node()
		if n == nil {
			return errors.New("there is no Node " + target)
		}
		change(n)
		_, err := s.plane.Client.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{})
		return err
	}))
}

// pinned runs a pod that can only run on the worker, and waits until it does; change
// modifies it.
func (s *scene) pinned(change func(*corev1.PodSpec)) (ends func()) {
	s.t.Helper()
	labels := map[string]string{"app": "pinned"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "pinned", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelHostname: target},
					Containers:   []corev1.Container{{Name: "pinned", Image: "registry.k8s.io/e2e-test-images/agnhost"}},
				},
			},
		},
	}
	if change != nil {
		change(&d.Spec.Template.Spec)
	}
	_, err := s.plane.Client.AppsV1().Deployments("default").Create(s.t.Context(), d, metav1.CreateOptions{})
	s.check(err)
	s.until("the pinned pod runs", func() bool {
		for _, p := range s.pinnedPods() {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
					return true
				}
			}
		}
		return false
	})
	return func() {
		s.check(s.plane.Client.AppsV1().Deployments("default").Delete(s.t.Context(), "pinned", metav1.DeleteOptions{}))
		s.until("the pinned pod is gone", func() bool {
			pods := s.pinnedPods()
			for _, p := range pods {
				s.check(s.plane.Client.CoreV1().Pods("default").Delete(s.t.Context(), p.Name, now))
			}
			return len(pods) == 0
		})
	}
}

func (s *scene) pinnedPods() []corev1.Pod {
	s.t.Helper()
	list, err := s.plane.Client.CoreV1().Pods("default").List(s.t.Context(), metav1.ListOptions{LabelSelector: "app=pinned"})
	if err != nil {
		s.t.Error(err)
		return nil
	}
	return list.Items
}

// volume makes a bound volume of a CSI driver; use adds it to a pod.
func (s *scene) volume() (use func(*corev1.PodSpec), ends func()) {
	s.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	volumes, claims := s.plane.Client.CoreV1().PersistentVolumes(), s.plane.Client.CoreV1().PersistentVolumeClaims("default")
	_, err := volumes.Create(s.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "far"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: "far"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "far"},
			},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	_, err = claims.Create(s.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "far", Namespace: "default"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
			VolumeName: "far", Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	return func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{{Name: "far", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "far"},
			}}}
		}, func() {
			s.check(claims.Delete(s.t.Context(), "far", metav1.DeleteOptions{}))
			s.check(volumes.Delete(s.t.Context(), "far", metav1.DeleteOptions{}))
		}
}
