package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

// evictions is how many pods are asked to go at the same time.
const evictions = 10

// Drain empties a cordoned node: see cluster.Kube. kubectl chooses the pods. Its
// own loop ends at the first answer that it does not expect, so this one is ours.
// say is called by one goroutine at a time and must not block.
func (c *Client) Drain(ctx context.Context, node string, o cluster.DrainOptions, say func(string)) error {
	d := &draining{Client: c, node: node, DrainOptions: o, say: say, said: map[string]bool{}, from: map[string]bool{}, pods: map[types.UID]*leaving{}}
	err := d.until(ctx, o.Timeout)
	if o.Delete && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && d.condemn() {
		err = d.until(ctx, o.Timeout)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		for _, hint := range d.hints {
			err = fault.WithHint(err, "%s", hint)
		}
	}
	return err
}

// draining is one drain of one node.
type draining struct {
	*Client
	cluster.DrainOptions
	node  string
	uid   types.UID // of the Node when it began
	ready bool      // whether that was Ready at the last look
	pods  map[types.UID]*leaving
	left  string   // which pods are left, and why, at the last look
	hints []string // what can be done about those

	mu   sync.Mutex // of what follows: pods are asked in parallel
	say  func(string)
	said map[string]bool
	from map[string]bool // the namespaces of the pods
}

func (d *draining) leaves(namespace string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.from[namespace] = true
}

func (d *draining) leftFrom(namespace string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.from[namespace]
}

// leaving is a pod that is to go.
type leaving struct {
	pod       corev1.Pod
	answer    error     // of the API server when it was asked last; nil: it was let go
	notBefore time.Time // when to ask again
	refused   time.Time // since when a budget or admission has, not an API that could not answer; zero: it was not
	why       string    // it is still there
	condemned bool      // to be deleted, not evicted
}

// judge keeps what was found of a pod.
func (l *leaving) judge(why string, refused bool) {
	l.why = why
	switch {
	case !refused:
		l.refused = time.Time{}
	case l.refused.IsZero():
		l.refused = time.Now()
	}
}

func (l *leaving) String() string { return l.pod.Namespace + "/" + l.pod.Name }

func (d *draining) until(ctx context.Context, timeout time.Duration) error {
	w := wait.For{
		Name: "drain node " + d.node, Every: d.poll, Timeout: timeout,
		Watches: []wait.Watch{
			func(ctx context.Context, tell func(bool)) error { return d.watchPods(ctx, d.node, tell) },
			func(ctx context.Context, tell func(bool)) error { return d.watchBudgets(ctx, d.leftFrom, tell) },
		},
	}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		done, err := d.sweep(ctx)
		if err == nil || ctx.Err() != nil {
			return done, d.left, err
		}
		if fatal(err) {
			return false, "", wait.Stop(err)
		}
		d.once(err.Error())
		if d.left != "" {
			err = fmt.Errorf("%w; before that: %s", err, d.left)
		}
		return false, "", err
	})
}

// fatal says whether no waiting mends it: our credentials, our rights, the Node
// itself, or what was refused.
func fatal(err error) bool {
	return apierrors.IsUnauthorized(err) || fault.KindOf(err) == fault.Refused
}

// sweep looks at what is left and asks that to go.
func (d *draining) sweep(ctx context.Context) (done bool, err error) {
	if err := d.sameNode(ctx); err != nil {
		return false, err
	}
	pods, err := d.choose(ctx)
	if err != nil {
		return false, err
	}
	d.follow(pods)
	if len(pods) == 0 {
		return true, nil
	}
	if err := d.ask(ctx); err != nil {
		return false, err
	}
	return false, d.explain(ctx)
}

// sameNode makes sure that an empty node is one that was emptied. The pods of a
// Node that was deleted vanish from the API while they still run, and one that is
// schedulable gets new ones.
func (d *draining) sameNode(ctx context.Context) error {
	n, err := d.api.CoreV1().Nodes().Get(ctx, d.node, metav1.GetOptions{})
	const again = "what ran on it may run still. Restart its kubelet, which makes the Node again: talosctl -n %s service kubelet restart. Then run the same command again"
	switch {
	case missing(err):
		return fault.WithHint(fault.DrainBlocked.Refusedf("Kubernetes has no node %s any more: %w", d.node, d.translate(err)), again, d.node)
	case err != nil:
		return d.translate(err)
	case d.uid != "" && n.UID != d.uid:
		return fault.WithHint(fault.DrainBlocked.Refusedf("somebody deleted node %s meanwhile, and its kubelet has made another one", d.node), "what ran on it may run still: run the same command again")
	case !n.Spec.Unschedulable:
		return fault.WithHint(fault.DrainBlocked.Refusedf("node %s is schedulable: somebody has uncordoned it meanwhile", d.node), "see who did; then run the same command again")
	}
	d.uid, d.ready = n.UID, isReady(n)
	return nil
}

// choose lists the pods that have to go. kubectl tells those from what belongs to
// the node. Of pods that nothing makes again it would take Force for an answer
// even where they are on their way out already, so those are judged here.
func (d *draining) choose(ctx context.Context) ([]corev1.Pod, error) {
	var lost []string
	h := &drain.Helper{
		Ctx: ctx, Client: d.api, Force: true,
		GracePeriodSeconds:  -1, // each pod's own
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  true, // the disk that holds it goes away with the node's system disk
		AdditionalFilters: []drain.PodFilter{func(p corev1.Pod) drain.PodDeleteStatus {
			if ofForeignDaemonSet(&p) && !finished(&p) { // kubectl has done so with those of apps/v1
				return drain.MakePodDeleteStatusSkip()
			}
			if !d.Force && irreplaceable(&p) {
				lost = append(lost, p.Namespace+"/"+p.Name)
			}
			return drain.MakePodDeleteStatusOkay()
		}},
	}
	list, errs := h.GetPodsForDeletion(d.node)
	for i, err := range errs {
		errs[i] = foreign.Error(err)
	}
	switch {
	case len(errs) > 0 && list == nil:
		return nil, fmt.Errorf("list pods: %w", d.translate(errors.Join(errs...)))
	case len(errs) > 0:
		return nil, d.daemonSets(ctx, errors.Join(errs...))
	case len(lost) > 0:
		return nil, fault.WithHint(fault.DrainBlocked.Refusedf("no controller would bring these pods back: %s", strings.Join(lost, ", ")),
			"delete them yourself, or set roll.drain.force: true")
	}
	return list.Pods(), nil
}

// irreplaceable says whether nobody makes a pod that has to go again: a bare one,
// or one whose DaemonSet is gone. kubectl has kept those of others back already.
func irreplaceable(p *corev1.Pod) bool {
	return (metav1.GetControllerOfNoCopy(p) == nil || ofDaemonSet(p)) && !finished(p) && p.DeletionTimestamp == nil
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// daemonSets asks again what kubectl could not read, of whose answer it passes on
// the words alone.
func (d *draining) daemonSets(ctx context.Context, words error) error {
	if _, err := d.api.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list daemon sets: %w", d.translate(err))
	}
	return words
}

// follow tells which of the pods are gone and which came. A pod is its UID: a
// StatefulSet's next one has the same name.
func (d *draining) follow(pods []corev1.Pod) {
	present := map[types.UID]bool{}
	for _, p := range pods {
		present[p.UID] = true
		if l := d.pods[p.UID]; l != nil {
			l.pod = p
		} else {
			d.pods[p.UID] = &leaving{pod: p}
			d.leaves(p.Namespace)
		}
	}
	for uid, l := range d.pods {
		if !present[uid] {
			delete(d.pods, uid)
			d.tell(fmt.Sprintf("pod %s is gone", l))
		}
	}
}

// ask asks every pod that is not on its way out yet to go.
func (d *draining) ask(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(evictions)
	for _, l := range d.pods {
		if l.pod.DeletionTimestamp == nil && !time.Now().Before(l.notBefore) {
			g.Go(func() error { return d.askOne(ctx, l) })
		}
	}
	return g.Wait()
}

// once says a line that was not said yet.
func (d *draining) once(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.said[line] {
		d.said[line] = true
		d.say(line)
	}
}

func (d *draining) tell(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.say(line)
}
