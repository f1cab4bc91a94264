package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// Judge evaluates a gate's expression on the current state of every object that the gate selects. A kind that is not
// served is not an error.
func (c *Client) Judge(ctx context.Context, g cluster.ObjectGate) (cluster.Judged, error) {
	expr, err := expression.Compile(g.Expr)
	if err != nil {
		return cluster.Judged{}, fault.Configf("expression %q: %w", g.Expr, err)
	}
	resource, unserved, err := c.resourceOf(ctx, g)
	if err != nil || unserved != "" {
		return cluster.Judged{Unserved: foreign.Line(unserved)}, err
	}
	j := judge{expr: expr}
	err = c.eachObject(ctx, g, resource, func() { j.Judged = cluster.Judged{} }, func(object map[string]any) { j.see(ctx, object) })
	if err == nil {
		err = ctx.Err() // a cancelled evaluation says nothing about its object
	}
	return j.Judged, err
}

type judge struct {
	expr *expression.Expression
	cluster.Judged
}

func (j *judge) see(ctx context.Context, object map[string]any) {
	j.Objects++
	if holds, why := j.expr.Judge(ctx, object); !holds {
		j.Failing = append(j.Failing, cluster.FailingObject{Name: nameOf(object), Why: why})
	}
}

func nameOf(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	return foreign.Line(strings.TrimPrefix(namespace+"/"+name, "/"))
}

// resourceOf asks the API for a kind's resource; unserved says why there is none.
func (c *Client) resourceOf(ctx context.Context, g cluster.ObjectGate) (r metav1.APIResource, unserved string, err error) {
	gv, err := schema.ParseGroupVersion(g.APIVersion)
	if err != nil {
		return r, "", fault.Configf("apiVersion: %w", err)
	}
	if unserved, err := c.unservedGroup(ctx, gv); err != nil || unserved != "" {
		return r, unserved, err
	}
	list, err := c.resources(ctx, gv)
	if err != nil {
		return r, "", err
	}
	i := slices.IndexFunc(list, func(r metav1.APIResource) bool { return r.Kind == g.Kind && slices.Contains(r.Verbs, "list") })
	if i < 0 {
		kinds := cluster.Each(list, func(r metav1.APIResource) string { return r.Kind })
		slices.Sort(kinds)
		return r, fmt.Sprintf("%s has no kind %s, only %s", gv, g.Kind, strings.Join(slices.Compact(kinds), ", ")), nil
	}
	r = list[i]
	if !r.Namespaced && g.Namespace != "" {
		return r, "", fault.WithHint(fault.Refusedf("%s %s is in no namespace, so not in %s", gv, g.Kind, g.Namespace), "remove namespace from the gate in roll.gates")
	}
	if r.Namespaced && g.Namespace == "" && g.Name != "" {
		return r, "", fault.WithHint(fault.Refusedf("%s %s is in a namespace, and the gate names none", gv, g.Kind), "give the gate in roll.gates its namespace")
	}
	return r, "", nil
}

// unservedGroup says why a group's version is not served; "" if it is.
func (c *Client) unservedGroup(ctx context.Context, gv schema.GroupVersion) (string, error) {
	if gv.Group == "" {
		return "", nil
	}
	groups, err := c.groups(ctx)
	if err != nil {
		return "", err
	}
	switch served, installed := servedVersions(groups, gv.Group); {
	case !installed:
		return gv.Group + " is not installed: the API has no group of that name", nil
	case !slices.Contains(served, gv.Version):
		return fmt.Sprintf("%s is served as %s, not as %s", gv.Group, strings.Join(served, ", "), gv.Version), nil
	}
	return "", nil
}

// eachObject passes every selected object to see, after begin. A missing named object is skipped.
func (c *Client) eachObject(ctx context.Context, g cluster.ObjectGate, r metav1.APIResource, begin func(), see func(map[string]any)) error {
	what := "read " + r.Name
	path := collectionPath(g, r)
	if g.Name != "" {
		var object map[string]any
		err := c.getJSON(ctx, c.api.Discovery().RESTClient().Get().AbsPath(append(path, g.Name)...), &object)
		if errors.Is(err, cluster.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, g.Name, err)
		}
		see(object)
		return nil
	}
	request := func() *rest.Request {
		request := c.api.Discovery().RESTClient().Get().AbsPath(path...)
		if g.Labels != "" {
			request = request.Param("labelSelector", g.Labels)
		}
		return request
	}
	if err := eachJSON(ctx, c, request, begin, see); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func collectionPath(g cluster.ObjectGate, r metav1.APIResource) []string {
	path := []string{"/apis", g.APIVersion}
	if !strings.Contains(g.APIVersion, "/") {
		path[0] = "/api"
	}
	if g.Namespace != "" {
		path = append(path, "namespaces", g.Namespace)
	}
	return append(path, r.Name)
}

// ParseSelector parses the syntax of kubectl -l: "zone=a,!gpu,tier in (web,db)".
func ParseSelector(text string) (cluster.Selector, error) {
	s, err := labels.Parse(text)
	switch {
	case err != nil:
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q: %w", text, err), "it is written as for kubectl get nodes -l: key=value,key!=value,key in (a,b),key,!key")
	case s.Empty():
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q is empty", text), "without one every node is looked at")
	}
	return cluster.Selector{Text: text, Matches: func(l map[string]string) bool { return s.Matches(labels.Set(l)) }}, nil
}

const (
	tuppr         = "tuppr.home-operations.com"
	tupprSuspend  = tuppr + "/suspend" // with any value: tuppr only checks that it exists
	systemUpgrade = "upgrade.cattle.io"
)

// OtherOwners describes programs and objects in the cluster that upgrade its nodes themselves and would undo a roll,
// or run at the same time. Suspended upgraders do neither.
func (c *Client) OtherOwners(ctx context.Context) ([]string, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, err
	}
	upgrades, tupprErr := c.tupprUpgrades(ctx, groups)
	plans, plansErr := c.talosPlans(ctx, groups)
	if err := errors.Join(tupprErr, plansErr); err != nil {
		return nil, err
	}
	return slices.Concat(upgrades, plans), nil
}

type tupprTarget struct {
	Version string `json:"version"`
}

func (c *Client) tupprUpgrades(ctx context.Context, groups []metav1.APIGroup) ([]string, error) {
	gv, ok := preferred(groups, tuppr)
	if !ok {
		return nil, nil
	}
	resources, err := c.resources(ctx, gv)
	if err != nil {
		return nil, err
	}
	type upgrade struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Talos      tupprTarget `json:"talos"`
			Kubernetes tupprTarget `json:"kubernetes"`
		} `json:"spec"`
	}
	var owners []string
	for _, r := range resources {
		upgrades, err := listCustom[upgrade](ctx, c, gv.WithResource(r.Name), "")
		if err != nil {
			return nil, err
		}
		for _, u := range upgrades {
			if _, suspended := u.Metadata.Annotations[tupprSuspend]; suspended {
				continue
			}
			to := cmp.Or(u.Spec.Talos.Version, u.Spec.Kubernetes.Version, "a version of its own")
			owners = append(owners, foreign.Line(fmt.Sprintf("tuppr's %s %s, which brings nodes to %s", r.Kind, u.Metadata.Name, to)))
		}
	}
	return owners, nil
}

// talosPlans lists the plans of the system-upgrade-controller that concern Talos: the name or something in the spec,
// such as an image, a Secret or an argument, mentions Talos.
func (c *Client) talosPlans(ctx context.Context, groups []metav1.APIGroup) ([]string, error) {
	gv, ok := preferred(groups, systemUpgrade)
	if !ok {
		return nil, nil
	}
	type plan struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     json.RawMessage   `json:"spec"`
	}
	plans, err := listCustom[plan](ctx, c, gv.WithResource("plans"), "")
	if err != nil {
		return nil, err
	}
	var owners []string
	for _, p := range plans {
		if strings.Contains(strings.ToLower(p.Metadata.Name+string(p.Spec)), "talos") {
			owners = append(owners, foreign.Line(fmt.Sprintf("system-upgrade-controller's Plan %s/%s, which mentions Talos", p.Metadata.Namespace, p.Metadata.Name)))
		}
	}
	return owners, nil
}
