package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

// evictions is how many pods are evicted concurrently.
const evictions = 10

// Drain empties a cordoned node: see cluster.Kube. kubectl chooses the pods, but the loop is ours, because kubectl's
// ends at the first unexpected answer. say is called by one goroutine at a time and must not block.
func (c *Client) Drain(ctx context.Context, node string, o cluster.DrainOptions, say func(string)) error {
	d := &draining{Client: c, node: node, DrainOptions: o, say: say, said: map[string]bool{}, from: map[string]bool{}, pods: map[types.UID]*leaving{}}
	err := d.until(ctx, o.Timeout)
	if o.Delete && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && d.deleteRefused() {
		err = d.until(ctx, o.Timeout)
	}
	if fault.KindOf(err) == fault.Interrupted {
		return cluster.OwnPodEvicted(node) // the wait for the others did not fail
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		for _, hint := range d.hints {
			err = fault.WithHint(err, "%s", hint)
		}
	}
	return err
}

type draining struct {
	*Client
	cluster.DrainOptions
	node   string
	uid    types.UID // of the Node at the start
	ready  bool      // whether the Node was Ready at the last look
	pods   map[types.UID]*leaving
	hadOwn bool     // recast's own pod was on the node
	left   string   // which pods are left, and why, at the last look
	hints  []string // what can be done about them

	mu   sync.Mutex // guards what follows: pods are evicted in parallel
	say  func(string)
	said map[string]bool
	from map[string]bool // the namespaces of the pods
}

func (d *draining) addNamespace(namespace string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.from[namespace] = true
}

func (d *draining) hadPodsIn(namespace string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.from[namespace]
}

type leaving struct {
	pod       corev1.Pod
	answer    error     // the API server's last answer; nil: accepted
	accepted  bool      // the API server has accepted its eviction or deletion
	notBefore time.Time // when to ask again
	refused   time.Time // since when a budget or admission, not a failing API, has refused it; zero: not refused
	why       string    // why it is still there
	toDelete  bool      // to be deleted instead of evicted
}

// judge records the reason, and since when the pod is refused.
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
		Watches: []wait.Watch{d.watchPods, d.watchBudgets},
	}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		done, err := d.sweep(ctx)
		if err == nil || ctx.Err() != nil {
			return done, d.left, err
		}
		if fatal(err) {
			return false, "", wait.Stop(err)
		}
		d.sayOnce(err.Error())
		if d.left != "" {
			err = fmt.Errorf("%w; before that: %s", err, d.left)
		}
		return false, "", err
	})
}

// fatal reports whether waiting cannot help: our credentials, our rights, the Node
// itself, a refusal, or the end of recast's own pod.
func fatal(err error) bool {
	kind := fault.KindOf(err)
	return apierrors.IsUnauthorized(err) || kind == fault.Refused || kind == fault.Interrupted
}

func (d *draining) sweep(ctx context.Context) (done bool, err error) {
	if err := d.sameNode(ctx); err != nil {
		return false, err
	}
	pods, err := d.choose(ctx)
	if err != nil {
		return false, err
	}
	d.follow(pods)
	if !d.ends() {
		if len(pods) == 0 {
			return true, nil
		}
		if err := d.ask(ctx); err != nil {
			return false, err
		}
	}
	if d.ends() {
		return false, cluster.OwnPodEvicted(d.node)
	}
	return false, d.explain(ctx)
}

// sameNode ensures that, if the node is empty, the drain has emptied it. The pods of a deleted Node vanish from the
// API while they still run, and a schedulable Node gets new pods.
func (d *draining) sameNode(ctx context.Context) error {
	n, err := d.api.CoreV1().Nodes().Get(ctx, d.node, metav1.GetOptions{})
	const again = "its pods may still run. Restart its kubelet, which registers the Node again: talosctl -n %s service kubelet restart. Then run the same command again"
	switch {
	case missing(err):
		return fault.WithHint(fault.DrainBlocked.Refusedf("Kubernetes has no node %s any more: %w", d.node, d.translate(err)), again, d.node)
	case err != nil:
		return d.translate(err)
	case d.uid != "" && n.UID != d.uid:
		return fault.WithHint(fault.DrainBlocked.Refusedf("node %s was deleted meanwhile, and its kubelet registered a new one", d.node), "its pods may still run: run the same command again")
	case !n.Spec.Unschedulable:
		return fault.WithHint(fault.DrainBlocked.Refusedf("node %s is schedulable: someone has uncordoned it meanwhile", d.node), "see who did; then run the same command again")
	}
	d.uid, d.ready = n.UID, isReady(n)
	return nil
}

// choose lists the pods that have to go. kubectl separates them from the pods that belong to the node. kubectl would
// require Force for pods without a controller even if they are already terminating, so choose judges these itself.
func (d *draining) choose(ctx context.Context) ([]corev1.Pod, error) {
	var lost []string
	h := &drain.Helper{
		Ctx: ctx, Client: d.api, Force: true,
		GracePeriodSeconds:  -1, // each pod's own
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  true, // its disk is replaced with the node's system disk
		AdditionalFilters: []drain.PodFilter{func(p corev1.Pod) drain.PodDeleteStatus {
			if _, foreign := daemonSetOf(&p); foreign && !finished(&p) { // kubectl has already skipped those of apps/v1
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

// irreplaceable reports whether no controller would recreate the pod: a bare pod, or a pod whose DaemonSet is gone.
// kubectl has already held back the pods of other DaemonSets.
func irreplaceable(p *corev1.Pod) bool {
	own, _ := daemonSetOf(p)
	return (metav1.GetControllerOfNoCopy(p) == nil || own) && !finished(p) && p.DeletionTimestamp == nil
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// daemonSets repeats the read that failed in kubectl, which passes on only the error's text.
func (d *draining) daemonSets(ctx context.Context, words error) error {
	if _, err := d.api.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list daemon sets: %w", d.translate(err))
	}
	return words
}

// follow reports which pods are gone, and adds new ones. It tells pods apart by UID: a StatefulSet's next pod has the
// same name.
func (d *draining) follow(pods []corev1.Pod) {
	present := map[types.UID]bool{}
	for _, p := range pods {
		present[p.UID] = true
		if l := d.pods[p.UID]; l != nil {
			l.pod = p
		} else {
			d.pods[p.UID] = &leaving{pod: p}
			d.addNamespace(p.Namespace)
		}
	}
	for uid, l := range d.pods {
		if !present[uid] {
			delete(d.pods, uid)
			d.tell(fmt.Sprintf("pod %s is gone", l))
		}
	}
}

// ask evicts or deletes every pod that is not yet terminating; recast's own only when it is the last.
func (d *draining) ask(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(evictions)
	for _, l := range d.pods {
		if l.pod.DeletionTimestamp == nil && !time.Now().Before(l.notBefore) && !d.waits(l) {
			g.Go(func() error { return d.askOne(ctx, l) })
		}
	}
	return g.Wait()
}

func (d *draining) sayOnce(line string) {
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

// stayingKind returns the kind of a pod that a drain leaves on its node, in a word; "" for a pod that a drain evicts,
// or that has ended.
func stayingKind(p *corev1.Pod) string {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	own, foreign := daemonSetOf(p)
	switch {
	case finished(p):
		return ""
	case mirror:
		return "static"
	case own || foreign:
		return "DaemonSet"
	}
	return ""
}

// daemonSetOf reports whether a pod belongs to a DaemonSet of Kubernetes itself, or to another kind named DaemonSet, such
// as OpenKruise's: its pods, too, are recreated on their node, cordoned or not.
func daemonSetOf(p *corev1.Pod) (own, foreign bool) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "DaemonSet" {
		return false, false
	}
	own = schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Group == appsv1.GroupName
	return own, !own
}

// OwnNode implements cluster.NodeReader. A pod of another cluster may have the same name, but not the same UID.
func (c *Client) OwnNode(ctx context.Context) (string, error) {
	if c.own == (cluster.OwnPod{}) {
		return "", nil
	}
	p, err := c.api.CoreV1().Pods(c.own.Namespace).Get(ctx, c.own.Name, metav1.GetOptions{})
	switch {
	case missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read pod %s: %w", c.own, c.translate(err))
	case string(p.UID) != c.own.UID:
		return "", nil
	}
	if kind := stayingKind(p); kind != "" {
		return "", fault.Refusedf("pod %s, in which recast runs, is a %s pod, which a drain leaves on its node: run recast in a Job", c.own, kind)
	}
	return p.Spec.NodeName, nil
}

// waits reports whether the pod has to wait for the others because recast runs in it: it goes last.
func (d *draining) waits(l *leaving) bool {
	return d.own.UID != "" && string(l.pod.UID) == d.own.UID && len(d.pods) > 1
}

// ends reports whether recast's own pod was on the node and is ending, whoever caused that. Its kubelet ends this
// process, so to wait for the pod would be to wait for ourselves. The pod may be of another cluster.
func (d *draining) ends() bool {
	l := d.pods[types.UID(d.own.UID)]
	if l == nil {
		return d.hadOwn
	}
	d.hadOwn = true
	return l.accepted || l.pod.DeletionTimestamp != nil
}

// longestPause bounds the pause that a server can ask for.
const longestPause = 30 * time.Second

// askOne evicts or deletes one pod. It records the answer; an error ends the drain.
func (d *draining) askOne(ctx context.Context, l *leaving) error {
	let := d.evict
	if l.toDelete {
		let = d.remove
	} else {
		d.sayOnce(fmt.Sprintf("evicting pod %s", l))
	}
	err := let(ctx, &l.pod)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // cancelled: it says nothing about the pod
	}
	l.answer, l.notBefore, l.accepted = nil, time.Time{}, err == nil
	switch {
	case err == nil, missing(err), apierrors.IsConflict(err):
		return nil // terminating, gone, or replaced by a pod of the same name: the next look tells
	case apierrors.IsUnauthorized(err):
		return d.translate(err)
	case isForbidden(err):
		if err := d.requireMay(ctx, &l.pod, l.toDelete, err); err != nil {
			return err
		}
	}
	l.answer = err
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		l.notBefore = time.Now().Add(min(time.Duration(seconds)*time.Second, longestPause))
	}
	d.sayOnce(fmt.Sprintf("pod %s can't go yet: %s", l, d.answerText(err)))
	return nil
}

// evict asks the API server to evict this very pod, without client-go's own retries: the retries would wait here for
// a budget.
func (d *draining) evict(ctx context.Context, p *corev1.Pod) error {
	return d.api.PolicyV1().RESTClient().Post().MaxRetries(0).
		AbsPath("/api/v1").Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: onlyThisPod(p),
		}).Do(ctx).Error()
}

// remove deletes this very pod, with its own grace period.
func (d *draining) remove(ctx context.Context, p *corev1.Pod) error {
	return d.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *onlyThisPod(p))
}

func onlyThisPod(p *corev1.Pod) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
}

// isForbidden reports whether a 403 may be about our rights, not about a budget or a terminating namespace
// (plugin/namespace/lifecycle in apiserver).
func isForbidden(err error) bool {
	return apierrors.IsForbidden(err) &&
		!apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
}

// requireMay distinguishes missing rights, which waiting does not fix, from an
// admission webhook that denies with the same code: the API server knows our rights.
func (d *draining) requireMay(ctx context.Context, p *corev1.Pod, remove bool, denied error) error {
	what := &authorizationv1.ResourceAttributes{Namespace: p.Namespace, Name: p.Name, Verb: "create", Resource: "pods", Subresource: "eviction"}
	if remove {
		what.Verb, what.Subresource = "delete", ""
	}
	if may, err := d.may(ctx, what); err != nil || may {
		return nil //nolint:nilerr // unknown: it is retried until the timeout
	}
	return d.translate(denied)
}

// may asks the API server whether the kubeconfig has a right.
func (c *Client) may(ctx context.Context, right *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := c.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, c.translate(err)
	}
	return review.Status.Allowed, nil
}

// answerText returns the API server's answer, with its additional causes.
func (d *draining) answerText(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return d.translate(err).Error()
	}
	text := status.ErrStatus.Message
	if details := status.ErrStatus.Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Message != "" && !strings.Contains(text, cause.Message) {
				text += " " + cause.Message
			}
		}
	}
	return foreign.Line(text)
}

// denies reports whether an answer is a refusal by a webhook or a policy, not by a server that cannot answer.
// Webhooks and policies choose their code (admission/plugin/webhook/errors in apiserver).
func denies(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	switch code := status.ErrStatus.Code; code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// deleteRefused marks for deletion the pods that were refused to the end, and reports whether there are any. It does
// not touch pods that are merely slow.
func (d *draining) deleteRefused() bool {
	found := false
	for _, l := range d.pods {
		if !l.refused.IsZero() && l.pod.DeletionTimestamp == nil {
			l.toDelete, l.notBefore, found = true, time.Time{}, true
			d.tell(fmt.Sprintf("deleting pod %s, which was refused for %s (roll.drain.onTimeout: delete): %s", l, time.Since(l.refused).Round(time.Second), l.why))
		}
	}
	return found
}

func (d *draining) hint(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(d.hints, text) {
		d.hints = append(d.hints, text)
	}
}

// explain records which pods are left and why, and what can be done. The API server does not name the budgets if two
// cover a pod, so explain reads them.
func (d *draining) explain(ctx context.Context) error {
	budgets, err := d.budgets(ctx)
	if err != nil {
		return err
	}
	d.hints = nil
	var left []string
	for _, l := range d.pods {
		l.judge(d.why(l, budgets))
		left = append(left, fmt.Sprintf("%s (%s)", l, l.why))
	}
	slices.Sort(left)
	slices.Sort(d.hints)
	d.left = "pods left: " + strings.Join(left, "; ")
	return nil
}

// budgets lists all budgets of the cluster, or none if no pod can be covered by two. Budgets only improve messages:
// without the right to read them it returns none.
func (d *draining) budgets(ctx context.Context) ([]policyv1.PodDisruptionBudget, error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(d.pods)), func(l *leaving) bool { return mayBeTwoBudgets(l.answer) }) {
		return nil, nil
	}
	list, err := d.api.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list pod disruption budgets: %w", d.translate(err))
	}
	return list.Items, nil
}

// mayBeTwoBudgets reports whether an answer may come from two budgets on one pod: Kubernetes then answers 500 without
// a reason (registry/core/pod/storage/eviction.go).
func mayBeTwoBudgets(answer error) bool {
	status, ok := answer.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusInternalServerError
}

func (d *draining) why(l *leaving, budgets []policyv1.PodDisruptionBudget) (why string, refused bool) {
	covering := slices.DeleteFunc(slices.Clone(budgets), func(b policyv1.PodDisruptionBudget) bool { return !covers(b, &l.pod) })
	budget, byBudget := apierrors.StatusCause(l.answer, policyv1.DisruptionBudgetCause)
	_, later := apierrors.SuggestsClientDelay(l.answer)
	switch {
	case l.pod.DeletionTimestamp != nil:
		return d.terminating(&l.pod), false
	case d.waits(l):
		return "recast runs in it, so it goes last", false
	case l.answer == nil:
		return "still running", false
	case mayBeTwoBudgets(l.answer) && len(covering) > 1:
		d.hint("change the PodDisruptionBudgets so that only one covers a pod, then run again%s", d.deleteHint())
		return "PodDisruptionBudgets " + names(covering) + " cover it, and Kubernetes evicts no pod that more than one covers", true
	case byBudget && later: // the budget was not checked yet: createTooManyRequestsError in eviction.go
		return budgetMessage(&l.pod, budget.Message), false
	case byBudget:
		d.hint("give the workload a replica to spare or loosen its budget, then run again%s", d.deleteHint())
		return budgetMessage(&l.pod, budget.Message), true
	case apierrors.HasStatusCause(l.answer, corev1.NamespaceTerminatingCause):
		return "its namespace is being terminated", false
	case denies(l.answer) && l.toDelete:
		d.hint("change the webhook or policy that denies it to allow the deletion of that pod, then run again: kubectl get validatingwebhookconfigurations, validatingadmissionpolicies")
		return d.answerText(l.answer), true
	case denies(l.answer):
		d.hint("change the webhook or policy that denies it to allow the eviction of that pod, then run again: kubectl get validatingwebhookconfigurations, validatingadmissionpolicies%s", d.deleteHint())
		return d.answerText(l.answer), true
	}
	return d.answerText(l.answer), false
}

// deleteHint suggests the deletion of pods, unless it is enabled.
func (d *draining) deleteHint() string {
	if d.Delete {
		return ""
	}
	return fmt.Sprintf("; roll.drain.onTimeout: delete deletes what is left after roll.drain.timeout (%s)", d.Timeout)
}

// budgetMessage returns the server's message about a pod's budget, with the budget's full name: only the server knows
// the numbers by which it decided.
func budgetMessage(p *corev1.Pod, cause string) string {
	cause = foreign.Line(cause)
	if rest, ok := strings.CutPrefix(cause, "The disruption budget "); ok {
		return "PodDisruptionBudget " + p.Namespace + "/" + rest
	}
	return "PodDisruptionBudget in " + p.Namespace + ": " + cause
}

// terminating says what a terminating pod waits for. At its deletion timestamp the pod's grace period ends, and its
// kubelet kills it.
func (d *draining) terminating(p *corev1.Pod) string {
	over := time.Since(p.DeletionTimestamp.Time)
	switch {
	case len(p.Finalizers) > 0:
		d.hint("whoever set the finalizers of a pod has to remove them: kubectl -n %s get pod %s -o yaml shows them; if that program is gone for good, remove them yourself", p.Namespace, p.Name)
		return "still terminating, waiting for finalizers " + strings.Join(p.Finalizers, ", ")
	case over < 0:
		return "still terminating, within its grace period"
	}
	d.hint("see why its kubelet does not end it: talosctl -n %s service kubelet, talosctl -n %s logs kubelet", d.node, d.node)
	why := fmt.Sprintf("still terminating, its grace period was over %s ago", over.Round(time.Second))
	if !d.ready {
		why += ", and its node is not Ready: its kubelet does not answer"
	}
	return why
}

// covers reports whether a budget covers the pod. A budget with an empty selector covers every pod of its namespace.
func covers(b policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && b.Namespace == p.Namespace && selector.Matches(labels.Set(p.Labels))
}

func names(budgets []policyv1.PodDisruptionBudget) string {
	out := cluster.Each(budgets, func(b policyv1.PodDisruptionBudget) string { return b.Namespace + "/" + b.Name })
	slices.Sort(out)
	return strings.Join(out, " and ")
}
