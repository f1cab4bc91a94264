package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
)

// Holds implements replica.HoldReader.
func (c *Client) Holds(ctx context.Context) ([]replica.Hold, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for what is held back: %w", err)
	}
	var all []replica.Hold
	var errs []error
	for _, known := range c.storageSystems() {
		if known.hold == nil {
			continue
		}
		holds, err := known.holds(ctx, groups)
		all, errs = append(all, holds...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func (s storageSystem) holds(ctx context.Context, groups []metav1.APIGroup) ([]replica.Hold, error) {
	if _, installed, err := s.find(ctx, groups); err != nil || !installed {
		return nil, err
	}
	settings, err := s.hold.held(ctx)
	if err != nil {
		return nil, err
	}
	return replica.Held(settings)
}

// HoldRebuild implements replica.Holder.
func (c *Client) HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error) {
	begin := func(h *holding) string { return h.begin + node }
	err = c.amendSettings(ctx, system, begin, func(ctx context.Context, settings []replica.Setting) error {
		said, err = replica.HoldRebuild(ctx, settings, node, run, atLeast)
		return err
	})
	return said, err
}

// GiveBack implements replica.Holder.
func (c *Client) GiveBack(ctx context.Context, system string, nodes ...string) (said string, err error) {
	begin := func(*holding) string {
		return "give back what " + system + " was told for " + strings.Join(nodes, ", ")
	}
	err = c.amendSettings(ctx, system, begin, func(ctx context.Context, settings []replica.Setting) error {
		said, err = replica.GiveBack(ctx, settings, nodes...)
		return err
	})
	return said, err
}

// amendSettings changes how long a system waits, and what is remembered of it. If someone else writes between our read and our
// write, or the answer is lost, the settings are read again and change called again.
func (c *Client) amendSettings(ctx context.Context, system string, what func(*holding) string, change func(context.Context, []replica.Setting) error) error {
	known, _ := c.storageSystem(system)
	if known.hold == nil {
		return fmt.Errorf("the rebuild of %s can't be held back", system)
	}
	err := c.repeat(ctx, what(known.hold), func(ctx context.Context) error {
		settings, err := known.hold.settings(ctx)
		if err != nil {
			return err
		}
		return change(ctx, settings)
	})
	if fault.KindOf(err) == fault.Refused {
		err = fault.WithHint(err, "the kubeconfig needs %s; %s does not touch it", known.hold.needs, replica.Off(system))
	}
	return err
}

// MayHold implements replica.HoldReader.
func (c *Client) MayHold(ctx context.Context, system string) error {
	known, _ := c.storageSystem(system)
	if known.hold == nil {
		return nil
	}
	right, err := known.hold.right(ctx)
	if err != nil || right == nil {
		return err
	}
	review, err := c.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("ask what the kubeconfig may do: %w", c.translate(err))
	case !review.Status.Allowed:
		return fault.WithHint(fault.Refusedf("the kubeconfig may not %s", known.hold.mayNot), "where a node is away longer than %s waits, a roll has it wait longer, and needs that right", system)
	}
	return nil
}
