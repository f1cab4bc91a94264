package kubernetes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const inPlace = "strategy: in-place\n  " + patient

// claimInKubernetes rolls with a token that may read VMs but not change any, while a user
// with another token tries to.
func (s *scene) claimInKubernetes() {
	poor, ends := s.stale()
	defer func() { s.count += poor.count }()
	done := make(chan said)
	go func() { done <- poor.run(rollLine) }()
	s.until("the roll waits for a pod", s.ending)
	l := s.lease()
	if l == nil {
		s.t.Fatal("the roll has no Lease kube-system/recast")
	}
	if l.Spec.HolderIdentity == nil || !strings.HasPrefix(*l.Spec.HolderIdentity, "recast run ") {
		s.t.Errorf("the Lease does not say whose it is: %+v", l.Spec)
	}
	s.must(0, "status", "Kubernetes has it as Lease kube-system/recast")
	s.must(5, "roll --yes --only wk2", "(Lease kube-system/recast)")
	if again := s.lease(); again == nil || again.UID != l.UID || again.ResourceVersion == l.ResourceVersion {
		s.t.Errorf("the Lease of a run that is alive is renewed; it was %+v, then %+v", l, again)
	}
	ends()
	(<-done).has(s.t, 0)
	if l := s.lease(); l != nil {
		s.t.Errorf("the Lease outlived its roll: %+v", l)
	}
	s.settled()
	s.must(2, "drift", "in sync  wk1", "stale    wk2")
	s.t.Attr("kubernetes-troubles", "1")
}

// claimDeleted deletes the Lease in the middle of a roll.
func (s *scene) claimDeleted() {
	poor, ends := s.stale()
	defer func() { s.count += poor.count }()
	done := make(chan said)
	go func() { done <- poor.run(rollLine) }()
	s.until("the roll waits for a pod", s.ending)
	was := s.lease()
	if was == nil {
		s.t.Fatal("the roll has no Lease kube-system/recast")
	}
	s.check(s.leases().Delete(s.t.Context(), was.Name, metav1.DeleteOptions{}))
	(<-done).has(s.t, 5, "lost the claim of cluster lab: the Lease was deleted", "this run must stop")
	if l := s.lease(); l != nil {
		s.t.Errorf("the Lease was recreated: %+v", l)
	}
	s.leaseStaysGone(was)
	ends()
	poor.must(0, "roll --yes")
	s.settled()
	s.must(0, "drift", "5 nodes in sync")
	s.t.Attr("kubernetes-troubles", "1")
}

// leaseStaysGone updates a deleted Lease with its UID, as recast does, which must fail,
// and without, which recreates it.
func (s *scene) leaseStaysGone(was *coordinationv1.Lease) {
	s.t.Helper()
	if _, err := s.leases().Update(s.t.Context(), was, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		s.t.Errorf("a heartbeat to a Lease that was deleted: %v, want a conflict", err)
	}
	anonymous := was.DeepCopy()
	anonymous.UID = ""
	if _, err := s.leases().Update(s.t.Context(), anonymous, metav1.UpdateOptions{}); err != nil {
		s.t.Errorf("an update of a Lease that was deleted, without its UID, should recreate it: %v", err)
	}
	s.check(s.leases().Delete(s.t.Context(), was.Name, metav1.DeleteOptions{}))
}

// stale makes the worker stale for an upgrade in place, with a slowly terminating pod on
// it, and returns a user with the token that can't change VMs.
func (s *scene) stale() (poor *user, ends func()) {
	s.t.Helper()
	for _, line := range []string{
		"role add Look --privs Sys.Audit,VM.Audit,Datastore.Audit",
		"acl modify / --users poor@pve --tokens poor@pve!lab --roles Look",
	} {
		s.run("lab pveum --dir . " + line) // the role may exist
	}
	s.waits(inPlace)
	s.must(0, "lab patch iscsi-tools --dir .")
	s.must(0, "lock --update")
	ends = s.pinned(stubborn(3600))
	return s.colleague(), ends
}

// colleague is a user with a copy of the working directory and the poor token.
func (s *scene) colleague() *user {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "lab")
	s.check(os.CopyFS(dir, os.DirFS(s.dir)))
	s.check(os.RemoveAll(filepath.Join(dir, ".recast")))
	i := slices.IndexFunc(s.env, func(v string) bool { return strings.HasPrefix(v, "POOR_TOKEN=") })
	if i < 0 {
		s.t.Fatalf("the lab has no poor token: %q", s.env)
	}
	_, token, _ := strings.Cut(s.env[i], "=")
	return &user{t: s.t, plane: s.plane, recast: s.recast, dir: dir, env: append(slices.Clone(s.env), "PROXMOX_VE_API_TOKEN="+token)}
}

// ending says whether the pinned pod is terminating.
func (s *scene) ending() bool {
	return slices.ContainsFunc(s.pinnedPods(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (s *scene) leases() coordinationclient.LeaseInterface {
	return s.plane.Client.CoordinationV1().Leases(metav1.NamespaceSystem)
}

// lease is the claim, nil if there is none.
func (s *scene) lease() *coordinationv1.Lease {
	s.t.Helper()
	l, err := s.leases().Get(s.t.Context(), "recast", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.check(err)
	return l
}
