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

	"github.com/recast-sh/recast/internal/foreign"
)

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
