package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

var (
	recastBinary  = flag.String("recast", "../../../bin/recast", "the recast that rolls, and whose lab it is")
	kubectlBinary = flag.String("kubectl", "../../../bin/e2e/kubectl", "what is built of ./kubectl")
)

var speed = flag.String("speed", "20", "of the lab")

const patience = 5 * time.Minute

// user runs commands in the working directory of a lab whose objects are in a real control plane.
type user struct {
	t      *testing.T
	plane  *plane.ControlPlane
	recast string // binary
	dir    string
	env    []string

	count int // commands
	errs  safeBuffer
}

// startLab starts a lab in a separate process, in front of the control plane if there is one.
func startLab(t *testing.T, plane *plane.ControlPlane, flags ...string) *user {
	t.Helper()
	u := &user{t: t, plane: plane, dir: filepath.Join(t.TempDir(), "lab")}
	var err error
	if u.recast, err = filepath.Abs(*recastBinary); err == nil {
		_, err = os.Stat(u.recast)
	}
	if err != nil {
		t.Fatalf("%v: make e2e-k8s builds it", err)
	}
	console := filepath.Join(filepath.Dir(u.dir), "console")
	args := append([]string{"lab", "up", "--dir", u.dir, "--speed", *speed, "--console", console}, flags...)
	if plane != nil {
		args = append(args, "--kubernetes", plane.Dir)
	}
	c := exec.CommandContext(t.Context(), u.recast, args...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	said := new(process.Tail)
	c.Stdout, c.Stderr = said, said
	mustDo(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		<-ended // the test's context has ended by then
		if b, err := os.ReadFile(console); err == nil && t.Failed() {
			log := new(process.Tail)
			_, _ = log.Write(b)
			t.Logf("the end of what the machines said:\n%s", log)
		}
	})
	for range 1200 {
		if _, err := os.Stat(filepath.Join(u.dir, "lab.json")); err == nil {
			u.readEnv()
			return u
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the lab has ended: %v\n%s", err, said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("the lab is not ready after two minutes:\n%s", said)
	return nil
}

func (u *user) readEnv() {
	u.t.Helper()
	env := must(os.ReadFile(filepath.Join(u.dir, "env")))(u.t)
	for line := range strings.Lines(string(env)) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			u.env = append(u.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
}

// telling says whether the running command has printed that on stderr.
func (u *user) telling(text string) bool { return strings.Contains(u.errs.String(), text) }

// safeBuffer can be read while a program writes to it.
type safeBuffer struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.String()
}

// Reset empties it.
func (b *safeBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said.Reset()
}

type said struct {
	command     string
	out, errs   string
	code        int
	tookSeconds float64
}

// run runs a recast command to its end.
func (u *user) run(line string) said { return u.call("recast", u.recast, strings.Fields(line)) }

func (u *user) call(name, program string, args []string) said {
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	began := time.Now()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = u.dir
	c.Env = slices.Concat(os.Environ(), []string{"NO_COLOR=1", "HOME=" + u.dir}, u.env)
	var out bytes.Buffer
	u.errs.Reset()
	c.Stdout, c.Stderr = &out, &u.errs
	err := c.Run()
	s := said{command: name + " " + strings.Join(args, " "), out: out.String(), errs: u.errs.String(), tookSeconds: time.Since(began).Seconds()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		s.code = exit.ExitCode()
	} else if err != nil {
		s.code, s.errs = -1, err.Error()
	}
	u.count++
	fmt.Fprintf(u.t.Output(), "   $ %s   # exit %d, %.1f s\n", s.command, s.code, s.tookSeconds)
	return s
}

// must runs a command that must end with that code and print all of that.
func (u *user) must(code int, line string, texts ...string) said {
	u.t.Helper()
	s := u.run(line)
	s.has(u.t, code, texts...)
	return s
}

// has checks the exit code and that each text is in a line of stdout or stderr.
func (s said) has(t *testing.T, code int, texts ...string) {
	t.Helper()
	if s.code != code {
		t.Errorf("%s: exit code %d, want %d", s.command, s.code, code)
	}
	for _, text := range texts {
		found := false
		for line := range strings.Lines(s.out + s.errs) {
			if strings.Contains(line, text) {
				fmt.Fprintf(t.Output(), "       %s\n", strings.TrimSpace(line))
				found = true
				break
			}
		}
		if !found {
			t.Errorf("%s: it does not say %q", s.command, text)
		}
	}
	if t.Failed() {
		t.Fatalf("%s\n%s%s", s.command, s.out, s.errs)
	}
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRoll rolls three control planes and two workers whose objects are in a real control plane, with a claim in
// Proxmox and with one in Kubernetes, and upgrades their Kubernetes to the next version.
func TestRoll(t *testing.T) {
	t.Parallel() // both mostly wait
	plane := plane.Start(t)
	u := startLab(t, plane, "--control-planes", "3", "--talos-version", "v1.14.1", "--kubernetes-version", before)
	s := &scene{user: u, t: t, plane: plane}
	for _, story := range []struct {
		name string
		tell func(*scene)
	}{
		{"recreate", (*scene).recreateAll},
		{"a claim in Kubernetes", (*scene).claimInKubernetes},
		{"someone deletes the claim", (*scene).claimDeleted},
		{"an upgrade that can't be", (*scene).upgradeRefused},
		{"an upgrade of Kubernetes", (*scene).upgradeKubernetes},
	} {
		told := t.Run(story.name, func(t *testing.T) {
			s.t, u.t = t, t
			story.tell(s)
		})
		if s.t, u.t = t, t; !told {
			return // the next one begins where this one should have ended
		}
	}
	u.must(0, "lab check --dir .", "persistent disks intact")
	t.Attr("commands", strconv.Itoa(u.count))
}

func (s *scene) recreateAll() {
	s.must(0, "drift", "5 nodes in sync")
	s.must(0, "lab patch qemu-guest-agent --dir .")
	s.must(0, "lock --update")
	s.must(2, "drift")
	s.must(0, "roll --yes")
	s.must(0, "drift", "5 nodes in sync")
}

// The Kubernetes version of the lab at first, and that of the real API server, which never changes.
const before, after = "v1.36.1", "v1.37.1"

// upgradeRefused are upgrades that end before anything restarts.
func (s *scene) upgradeRefused() {
	s.settled()
	s.until("kube-proxy runs everywhere", func() bool { return s.running()["kube-proxy"] == proxies(before) })
	was := s.running()
	s.must(4, "upgrade-k8s --to v1.38.0 --yes", "Kubernetes is upgraded one minor version at a time, and "+before+" → v1.38.0 skips v1.37")
	s.must(4, "upgrade-k8s --to v1.35.4 --yes", "Kubernetes can't be downgraded")
	s.must(4, "upgrade-k8s --to v1.37.9 --yes", "can't fetch registry.k8s.io/kube-apiserver:v1.37.9", "nothing was restarted")
	s.must(0, "upgrade-k8s --to "+after+" --dry-run", "cluster lab: Kubernetes "+before+" → "+after, "kube-proxy:"+after)
	if diff := cmp.Diff(was, s.running()); diff != "" {
		s.t.Errorf("it changed what runs (-was +is):\n%s", diff)
	}
	s.t.Attr("kubernetes-troubles", "3")
}

// upgradeKubernetes upgrades the cluster to the version in recast.yaml, while the API server is killed.
func (s *scene) upgradeKubernetes() {
	s.waits(patient)
	s.wantsKubernetes(after)
	s.must(2, "drift", "Kubernetes "+before+" → "+after)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.until("the second API server is the new one", func() bool {
			return s.running()["pod kube-apiserver-cp2"] == "registry.k8s.io/kube-apiserver:"+after
		})
		s.plane.StopAPI()
		time.Sleep(2 * time.Second)
		s.plane.StartAPI()
		s.plane.WaitReady()
	}()
	said := s.run("upgrade-k8s --yes")
	<-done
	said.has(s.t, 0, "Kubernetes is "+after+" on all of 5 nodes", "upgrade-k8s --to "+strings.TrimPrefix(after, "v"))
	if diff := cmp.Diff(upgraded(), s.running()); diff != "" {
		s.t.Errorf("what runs (-want +got):\n%s", diff)
	}
	s.must(0, "drift", "5 nodes in sync")
	s.must(0, "upgrade-k8s --yes", "nothing to do")
	s.t.Attr("kubernetes-troubles", "1")
}

func (s *scene) wantsKubernetes(version string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "recast.yaml")
	b, err := os.ReadFile(path)
	s.check(err)
	s.check(os.WriteFile(path, append(b, "kubernetes: {version: "+version+"}\n"...), 0o600))
}

func upgraded() map[string]string {
	want := map[string]string{"kube-proxy": proxies(after)}
	for _, node := range []string{"cp1", "cp2", "cp3", "wk1", "wk2"} {
		want["kubelet "+node] = after
	}
	for _, node := range []string{"cp1", "cp2", "cp3"} {
		for _, c := range staticPods {
			want["pod "+c+"-"+node] = "registry.k8s.io/" + c + ":" + after
		}
	}
	return want
}

func proxies(version string) string { return "registry.k8s.io/kube-proxy:" + version + ", 5 of 5 pods" }

var staticPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// running are the versions that Kubernetes reports: kubelets, mirror pods, and the
// DaemonSet that the real controllers roll out.
func (s *scene) running() map[string]string {
	s.t.Helper()
	is := map[string]string{}
	for _, n := range s.nodes() {
		is["kubelet "+n.Name] = n.Status.NodeInfo.KubeletVersion
	}
	pods, err := s.plane.Client.CoreV1().Pods("kube-system").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		return is // the API server is down
	}
	ready := map[string]int{}
	for _, p := range pods.Items {
		switch {
		case slices.ContainsFunc(staticPods, func(c string) bool { return strings.HasPrefix(p.Name, c+"-") }):
			is["pod "+p.Name] = p.Spec.Containers[0].Image
		case p.Labels["k8s-app"] == "kube-proxy" && podReady(p):
			ready[p.Spec.Containers[0].Image]++
		}
	}
	set, err := s.plane.Client.AppsV1().DaemonSets("kube-system").Get(s.t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return is
	}
	var shown []string
	for _, image := range slices.Sorted(maps.Keys(ready)) {
		shown = append(shown, fmt.Sprintf("%s, %d of %d pods", image, ready[image], set.Status.DesiredNumberScheduled))
	}
	is["kube-proxy"] = strings.Join(shown, "; ")
	return is
}

func podReady(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// writes is by how many revisions the lost etcd is ahead of its snapshot: more than the restored one gets in this test.
const writes = 1000

// TestRestoredEtcd: Talos restores etcd with the revision of the snapshot. Who watched the lost etcd continues from a
// revision of the future, and is told of nothing (etcd-io/etcd#16028); once that revision comes, the changes until then
// stay unknown. Who is started again, as recast restore and rebuild do with kubelets, sees what is there.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel() // it mostly waits
	p := plane.StartWith(t, []string{"--disable-admission-plugins=ServiceAccount"})
	w := &restored{t: t, plane: p, door: p.Door()}
	_, err := p.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "wk1"}}, metav1.CreateOptions{})
	w.check(err)

	old := w.kubelet()
	w.create("before")
	old.sees("before")
	snapshot := p.SaveEtcd()
	p.Write(writes)
	future := w.create("lost")
	old.sees("before", "lost")

	w.door.Shut()
	p.RestoreEtcd(snapshot)
	w.door.Open()
	w.check(p.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "before", *metav1.NewDeleteOptions(0)))
	if after := w.create("after"); after >= future {
		t.Fatalf("the restored etcd is at revision %d, the lost one was at %d: nothing is shown by that", after, future)
	}
	future = old.watchesFrom(future)
	w.kubelet().sees("after")
	old.sees("before", "lost")

	for w.create("later") <= future {
		p.Write(writes / 2)
		w.check(p.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "later", *metav1.NewDeleteOptions(0)))
	}
	w.create("late")
	old.sees("before", "late", "later", "lost")
	w.kubelet().sees("after", "late", "later")
	t.Attr("kubernetes-troubles", "1")
}

// restored is a control plane whose etcd is restored.
type restored struct {
	t     *testing.T
	plane *plane.ControlPlane
	door  *plane.Door // the kubelets' way to the API server
}

func (w *restored) check(err error) {
	w.t.Helper()
	mustDo(w.t, err)
}

func (w *restored) create(name string) (revision int) {
	w.t.Helper()
	made, err := w.plane.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	}, metav1.CreateOptions{})
	w.check(err)
	revision, err = strconv.Atoi(made.ResourceVersion)
	w.check(err)
	return revision
}

// kubelet watches the pods of wk1 as a kubelet does that starts: see newSourceApiserverFromLW in pkg/kubelet/config of
// Kubernetes.
func (w *restored) kubelet() *podWatch {
	w.t.Helper()
	c := w.plane.Node("wk1")
	c.Host = "https://" + w.door.Addr
	client, err := kubernetes.NewForConfig(c)
	w.check(err)
	k := &podWatch{t: w.t}
	pods := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", "wk1"))
	plain := pods.WatchFuncWithContext
	pods.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		begun, err := plain(ctx, o)
		if err == nil {
			k.watches(o.ResourceVersion)
		}
		return begun, err
	}
	r := cache.NewReflector(pods, &corev1.Pod{}, cache.NewUndeltaStore(k.set, cache.MetaNamespaceKeyFunc), 0)
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.RunWithContext(ctx) }()
	w.t.Cleanup(func() { stop(); <-done })
	return k
}

// podWatch has what a kubelet knows of its pods.
type podWatch struct {
	t *testing.T

	mu   sync.Mutex
	pods []string // names, sorted
	from int      // the revision of the last watch that the API server has taken; 0: of everything that is there
}

func (k *podWatch) set(pods []any) {
	var names []string
	for _, p := range pods {
		names = append(names, p.(*corev1.Pod).Name)
	}
	slices.Sort(names)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = names
}

func (k *podWatch) watches(from string) {
	revision, _ := strconv.Atoi(from) // "" has none
	k.mu.Lock()
	defer k.mu.Unlock()
	k.from = revision
}

// watchesFrom waits until the last watch is from that revision or a later one, and returns it.
func (k *podWatch) watchesFrom(at int) (revision int) {
	k.t.Helper()
	k.until(fmt.Sprintf("watches from revision %d", at), func() bool { revision = k.from; return revision >= at })
	return revision
}

func (k *podWatch) sees(names ...string) {
	k.t.Helper()
	same := func() bool { return slices.Equal(k.pods, names) }
	k.until(fmt.Sprintf("knows %q", names), same)
	time.Sleep(3 * time.Second)
	k.until(fmt.Sprintf("knows %q", names), same)
}

func (k *podWatch) until(what string, so func() bool) {
	k.t.Helper()
	for range 600 {
		k.mu.Lock()
		done := so()
		k.mu.Unlock()
		if done {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.t.Fatalf("after a minute it is not so that the kubelet %s: it knows %q, and watches from revision %d", what, k.pods, k.from)
}

const inPlace = "strategy: in-place\n  " + patient

// claimInKubernetes rolls with a token that may read VMs but not change any, while a user with another token tries to.
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

// pinned runs a pod that can only run on the worker, and waits until it does; change modifies it.
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

// kinds are the API resources of examples/kubernetes/drift-cronjob.yaml.
var kinds = map[string]schema.GroupVersionResource{
	"Namespace":          {Version: "v1", Resource: "namespaces"},
	"ServiceAccount":     {Version: "v1", Resource: "serviceaccounts"},
	"ConfigMap":          {Version: "v1", Resource: "configmaps"},
	"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"CronJob":            {Group: "batch", Version: "v1", Resource: "cronjobs"},
	"NetworkPolicy":      {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
}

// TestNightlyManifests applies the nightly check's manifests to a real API server, with strict field validation,
// creates the resulting pod in a namespace with restricted pods, and checks the permissions of the pod's account.
func TestNightlyManifests(t *testing.T) {
	p := plane.Start(t)
	job := apply(t, p, "../../../examples/kubernetes/drift-cronjob.yaml")
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
	run := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "now", Namespace: job.Namespace}, Spec: job.Spec.JobTemplate.Spec}
	if _, err := p.Client.BatchV1().Jobs(job.Namespace).Create(t.Context(), run, options); err != nil {
		t.Errorf("a Job of it: %v", err)
	}
	template := job.Spec.JobTemplate.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "now", Namespace: job.Namespace, Labels: template.Labels}, Spec: template.Spec}
	if _, err := p.Client.CoreV1().Pods(job.Namespace).Create(t.Context(), pod, options); err != nil {
		t.Errorf("a pod of it: %v", err)
	}
	account := "system:serviceaccount:" + job.Namespace + ":" + template.Spec.ServiceAccountName
	for _, c := range []struct {
		verb, resource string
		may            bool
	}{
		{"list", "nodes", true},
		{"get", "nodes", false},
		{"patch", "nodes", false},
		{"list", "pods", false},
		{"get", "secrets", false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: c.verb, Resource: c.resource},
		}}
		got, err := p.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed != c.may {
			t.Errorf("%s may %s %s: %t, %v", account, c.verb, c.resource, got.Status.Allowed, err)
		}
	}
}

// apply creates everything in a file of manifests, and returns the CronJob.
func apply(t *testing.T, p *plane.ControlPlane, file string) (job batchv1.CronJob) {
	t.Helper()
	text := must(os.ReadFile(file))(t)
	client := must(dynamic.NewForConfig(p.Admin))(t)
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var object unstructured.Unstructured
		mustDo(t, yaml.Unmarshal(doc, &object.Object))
		made, err := client.Resource(kinds[object.GetKind()]).Namespace(object.GetNamespace()).
			Create(t.Context(), &object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		if object.GetKind() == "CronJob" {
			mustDo(t, runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &job))
		}
	}
	return job
}

// TestKubectl is what people type in a lab without a real control plane, in Kubernetes' own
// kubectl, and its tables beside those of Kubernetes' own printers.
func TestKubectl(t *testing.T) {
	t.Parallel() // it mostly waits
	u := startLab(t, nil, "--control-planes", "3")
	u.kubectl(0, "wait --for=condition=Ready nodes --all --timeout=60s", "node/wk2 condition met")
	for _, c := range commands {
		u.kubectl(c.code, c.line, c.texts...)
	}
	t.Run("tables", func(t *testing.T) {
		u.t = t
		u.tables()
	})
	t.Run("schemas", func(t *testing.T) {
		u.t = t
		u.schemas()
	})
	t.Attr("commands", strconv.Itoa(u.count))
}

// commands are in the order in which they run; blanks in a text stand for any number.
var commands = []struct {
	code  int
	line  string
	texts []string
}{
	{0, "version", []string{"Client Version: v1.37.1", "Server Version: v1.35.4"}},
	{0, "get nodes -o wide", []string{
		"NAME STATUS ROLES AGE VERSION INTERNAL-IP EXTERNAL-IP OS-IMAGE KERNEL-VERSION CONTAINER-RUNTIME",
		"cp1 Ready control-plane", "Talos (v1.13.9) <unknown> (amd64) containerd://2.1.4",
	}},
	{0, "wait --for=condition=Ready pods --all -A --timeout=60s", []string{"pod/kube-apiserver-cp1 condition met"}},
	{0, "get pods -A", []string{"NAMESPACE NAME READY STATUS RESTARTS AGE", "kube-system kube-apiserver-cp3 1/1 Running 0"}},
	{0, "get all", []string{"deployment.apps/web 2/2 2 2"}},
	{0, "get leases -n kube-node-lease", []string{"NAME HOLDER AGE", "wk1 wk1"}},
	{0, "get nodes --watch --request-timeout=2s", []string{"NAME STATUS ROLES AGE VERSION"}},
	{0, "explain node.spec", []string{"FIELD: spec <NodeSpec>", "unschedulable <boolean>"}},
	{0, "explain deployment.spec.template.spec.containers.ports", []string{"FIELD: ports <[]ContainerPort>", "containerPort <integer> -required-"}},

	{1, "diff -f {site}", []string{"+++ ", "+kind: Deployment"}},
	{0, "apply -f {site}", []string{"configmap/settings created", "deployment.apps/site created"}},
	{0, "apply -f {site}", []string{"configmap/settings unchanged", "deployment.apps/site unchanged"}},
	{0, "diff -f {site}", nil},
	{1, "create -f {site} --dry-run=server", []string{`configmaps "settings" already exists`}},
	{0, "rollout status deployment/site --timeout=60s", []string{`deployment "site" successfully rolled out`}},
	{0, "wait --for=condition=Available deployment/site --timeout=60s", []string{"deployment.apps/site condition met"}},
	{0, "get deployment site -o wide", []string{"NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR", "site 2/2 2 2", "site nginx:1.27 app=site"}},
	{0, "apply --server-side -f {site}", []string{"deployment.apps/site serverside-applied"}},
	{1, `patch deployment site --field-manager=other -p {"spec":{"replcas":1}} --subresource=scale`, []string{"the server could not find the requested resource"}},
	{0, `patch deployment site -p {"spec":{"replcas":1}}`, []string{`Warning: unknown field "spec.replcas"`}},

	{0, "describe node wk1", []string{"HolderIdentity: wk1", "Non-terminated Pods:", "Ready True"}},
	{0, "drain wk1 --ignore-daemonsets", []string{"node/wk1 cordoned", "node/wk1 drained"}},
	{0, "get node wk1", []string{"wk1 Ready,SchedulingDisabled"}},
	{0, "uncordon wk1", []string{"node/wk1 uncordoned"}},
	{1, "top nodes", []string{"error: Metrics API not available"}},
	{1, "get jobs", []string{`error: the server doesn't have a resource type "jobs"`}},
	{1, "get node wk9", []string{`Error from server (NotFound): nodes "wk9" not found`}},
	{0, "delete -f {site}", []string{`deployment.apps "site" deleted`}},
	{0, "apply -f {kinds}", []string{"poddisruptionbudget.policy/most created"}},
}

// kubectl runs a kubectl command that must end with that code and print all of that.
func (u *user) kubectl(code int, line string, texts ...string) {
	u.t.Helper()
	program := must(filepath.Abs(*kubectlBinary))(u.t)
	args := strings.Fields(line)
	for i, arg := range args {
		if name := strings.Trim(arg, "{}"); arg == "{"+name+"}" {
			args[i] = must(filepath.Abs("testdata/" + name + ".yaml"))(u.t)
		}
	}
	s := u.call("kubectl", program, args)
	blanks := regexp.MustCompile(`[ \t]+`)
	s.out, s.errs = blanks.ReplaceAllString(s.out, " "), blanks.ReplaceAllString(s.errs, " ")
	s.has(u.t, code, texts...)
}
