package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/linstor"
)

// holdAnnotation is JSON of a replica.Memo, on the setting that it is about.
const holdAnnotation = "recast.dev/hold"

// Holds implements replica.HoldReader.
func (c *Client) Holds(ctx context.Context) ([]replica.Hold, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for what is held back: %w", err)
	}
	holds := func(system string, version schema.GroupVersion, read func(context.Context) ([]replica.Hold, error)) ([]replica.Hold, error) {
		if installed, err := supports(groups, version); err != nil || !installed || c.skips(system) {
			return nil, err
		}
		return read(ctx)
	}
	ofLonghorn, errLonghorn := holds(longhornName, longhornVersion, c.longhornHolds)
	ofLINSTOR, errLINSTOR := holds(linstor.Name, piraeusVersion, c.linstorHolds)
	return append(ofLonghorn, ofLINSTOR...), errors.Join(errLonghorn, errLINSTOR)
}

// linstorHolds reads LINSTOR's. Where it can't be asked, recast has changed nothing.
func (c *Client) linstorHolds(ctx context.Context) ([]replica.Hold, error) {
	controller, away, _, err := c.linstorController(ctx)
	if errors.Is(err, errNoCluster) || err == nil && away != "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return controller.Holds(ctx)
}

func (c *Client) longhornHolds(ctx context.Context) ([]replica.Hold, error) {
	settings, err := listCustom[longhornSetting](ctx, c, longhornVersion.WithResource("settings"), longhornWait)
	if err != nil {
		return nil, err
	}
	var holds []replica.Hold
	for _, s := range settings {
		hold, err := s.hold()
		if err != nil {
			return nil, err
		}
		if hold != nil {
			holds = append(holds, *hold)
		}
	}
	return holds, nil
}

// hold is what recast has made of the setting; nil if nothing.
func (s longhornSetting) hold() (*replica.Hold, error) {
	memo, err := s.memo()
	if err != nil || len(memo.Nodes) == 0 {
		return nil, err
	}
	undo := fmt.Sprintf(`kubectl --namespace %s patch settings.longhorn.io %s --type merge --patch '{"value":"%s","metadata":{"annotations":{"%s":null}}}'`,
		s.Metadata.Namespace, longhornWait, memo.Was, holdAnnotation)
	if s.Value != memo.Set {
		undo = s.forget()
	}
	return &replica.Hold{System: longhornName, Setting: longhornWait, Now: foreign.Line(s.Value), Memo: memo, Undo: undo}, nil
}

// forget is the command that removes what recast remembers.
func (s longhornSetting) forget() string {
	return fmt.Sprintf("kubectl --namespace %s annotate settings.longhorn.io %s %s-", s.Metadata.Namespace, longhornWait, holdAnnotation)
}

// longhornPatience is how long Longhorn waits by itself, and what recast has made of that. holds is false
// where the setting is missing or no number.
func longhornPatience(settings []longhornSetting) (waits time.Duration, held []replica.Hold, holds bool, err error) {
	for _, s := range settings {
		if s.Metadata.Name != longhornWait {
			continue
		}
		hold, err := s.hold()
		if err != nil {
			return 0, nil, false, err
		}
		value := s.Value
		if hold != nil {
			held = append(held, *hold)
			if hold.Now == hold.Set {
				value = hold.Was
			}
		}
		seconds, err := strconv.Atoi(value)
		return time.Duration(seconds) * time.Second, held, err == nil, nil
	}
	return 0, nil, false, nil
}

func (s longhornSetting) memo() (m replica.Memo, err error) {
	text, ok := s.Metadata.Annotations[holdAnnotation]
	if !ok {
		return m, nil
	}
	if m, err = replica.ParseMemo(text, strconv.Atoi); err != nil {
		return m, fault.WithHint(fault.Refusedf("annotation %s of Longhorn's setting %s is not as recast writes it, so what was set before is not known: %s", holdAnnotation, longhornWait, foreign.Line(text)),
			"see that the setting has the value that you want, then remove it: %s", s.forget())
	}
	return m, nil
}

// HoldRebuild implements replica.Holder.
func (c *Client) HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error) {
	switch system {
	case longhornName:
	case linstor.Name:
		err = c.amendLINSTOR(ctx, "have LINSTOR wait for "+node, func(ctx context.Context, controller linstor.Controller) error {
			said, err = controller.Hold(ctx, node, run, atLeast)
			return err
		})
		return said, err
	default:
		return "", fmt.Errorf("the rebuild of %s can't be held back", system)
	}
	err = c.amendLonghorn(ctx, "hold back the rebuild of Longhorn for "+node, func(s longhornSetting, m replica.Memo) (string, replica.Memo, error) {
		value, memo, err := m.With(s.Value, node, int(atLeast/time.Second), strconv.Atoi)
		if said = ""; err == nil && value != s.Value {
			said = fmt.Sprintf("%s of Longhorn is %s instead of %s", longhornWait, value, memo.Was)
		}
		return value, memo.By(run, time.Now()), err
	})
	return said, err
}

// GiveBack implements replica.Holder.
func (c *Client) GiveBack(ctx context.Context, system string, nodes ...string) (said string, err error) {
	switch system {
	case longhornName:
	case linstor.Name:
		err = c.amendLINSTOR(ctx, "give back what LINSTOR was told for "+strings.Join(nodes, ", "), func(ctx context.Context, controller linstor.Controller) error {
			said, err = controller.GiveBack(ctx, nodes...)
			return err
		})
		return said, err
	default:
		return "", fmt.Errorf("the rebuild of %s can't be held back", system)
	}
	err = c.amendLonghorn(ctx, "give back what Longhorn was told for "+strings.Join(nodes, ", "), func(s longhornSetting, m replica.Memo) (string, replica.Memo, error) {
		value, memo, err := m.Without(s.Value, nodes...)
		switch said = ""; {
		case len(m.Nodes) == 0 || err != nil:
		case value != s.Value:
			said = fmt.Sprintf("%s of Longhorn is %s again", longhornWait, value)
			if len(memo.Nodes) > 0 {
				said = fmt.Sprintf("%s of Longhorn is %s, for %s", longhornWait, value, strings.Join(memo.For(), ", "))
			}
		case len(memo.Nodes) == 0:
			said = fmt.Sprintf("%s of Longhorn stays %s: someone else has set that", longhornWait, foreign.Line(value))
		}
		return value, memo, err
	})
	return said, err
}

// amendLINSTOR changes something of LINSTOR's controller; change may be repeated.
func (c *Client) amendLINSTOR(ctx context.Context, what string, change func(context.Context, linstor.Controller) error) error {
	err := c.repeat(ctx, what, func(ctx context.Context) error {
		controller, away, _, err := c.linstorController(ctx)
		if err == nil && away != "" {
			err = errors.New(away)
		}
		if err != nil {
			return err
		}
		return change(ctx, controller)
	})
	if fault.KindOf(err) == fault.Refused {
		err = fault.WithHint(err, "the kubeconfig needs the verbs get and update on services/proxy of LINSTOR's controller; %s does not touch it", replica.Off(linstor.Name))
	}
	return err
}

// amendLonghorn changes Longhorn's setting, and what is remembered of it, in one write. If someone else
// writes between our read and our write, or the answer is lost, it is read again and change called
// again. The setting is in seconds, from 0 on (longhorn-manager, types/setting.go,
// SettingDefinitionReplicaReplenishmentWaitInterval).
func (c *Client) amendLonghorn(ctx context.Context, what string, change func(longhornSetting, replica.Memo) (string, replica.Memo, error)) error {
	err := c.repeat(ctx, what, func(ctx context.Context) error {
		s, err := c.longhornSetting(ctx)
		if err != nil {
			return err
		}
		had, err := s.memo()
		if err != nil {
			return err
		}
		value, memo, err := change(s, had)
		if err != nil {
			return fault.Refusedf("Longhorn's setting %s: %w", longhornWait, err)
		}
		if value == s.Value && memo.Set == had.Set && maps.Equal(memo.Nodes, had.Nodes) {
			return nil
		}
		return c.writeLonghorn(ctx, s, value, memo)
	})
	if fault.KindOf(err) == fault.Refused {
		err = fault.WithHint(err, "the kubeconfig needs the verbs list and patch on settings of longhorn.io; %s does not touch it", replica.Off(longhornName))
	}
	return err
}

// longhornSetting reads what amendLonghorn changes; repeat translates its errors.
func (c *Client) longhornSetting(ctx context.Context) (longhornSetting, error) {
	body, err := c.api.Discovery().RESTClient().Get().AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "settings").
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, longhornWait).String()).Do(ctx).Raw()
	if err != nil {
		return longhornSetting{}, err
	}
	var list struct{ Items []longhornSetting }
	if err := json.Unmarshal(body, &list); err != nil {
		return longhornSetting{}, fmt.Errorf("decode settings of Longhorn: %w", err)
	}
	if len(list.Items) != 1 {
		return longhornSetting{}, fault.Refusedf("Longhorn has %d settings %s instead of one", len(list.Items), longhornWait)
	}
	return list.Items[0], nil
}

func (c *Client) writeLonghorn(ctx context.Context, s longhornSetting, value string, memo replica.Memo) error {
	annotations := map[string]*string{holdAnnotation: nil}
	if len(memo.Nodes) > 0 {
		text, err := json.Marshal(memo)
		if err != nil {
			return fmt.Errorf("encode annotation: %w", err)
		}
		annotations[holdAnnotation] = new(string(text))
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.Metadata.ResourceVersion, "annotations": annotations}, "value": value,
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	return c.api.Discovery().RESTClient().Patch(types.MergePatchType).
		AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "namespaces", s.Metadata.Namespace, "settings", s.Metadata.Name).
		Body(body).Do(ctx).Error()
}

// MayHold implements replica.HoldReader.
func (c *Client) MayHold(ctx context.Context, system string) error {
	switch system {
	case longhornName:
		settings, err := listCustom[longhornSetting](ctx, c, longhornVersion.WithResource("settings"), longhornWait)
		if err != nil || len(settings) == 0 {
			return err
		}
		return c.mayChange(ctx, system, "patch settings of longhorn.io", authorizationv1.ResourceAttributes{
			Group: longhornVersion.Group, Resource: "settings", Verb: "patch", Name: longhornWait, Namespace: settings[0].Metadata.Namespace,
		})
	case linstor.Name:
		at, found, err := c.findService(ctx, linstorLabel, linstorPort)
		if err != nil || !found {
			return err
		}
		return c.mayChange(ctx, system, "update services/proxy of LINSTOR's controller", authorizationv1.ResourceAttributes{
			Resource: "services", Subresource: "proxy", Verb: "update", Name: at.service.Name + ":" + linstorPort, Namespace: at.service.Namespace,
		})
	}
	return nil
}

// mayChange asks for a right that holding a system back needs.
func (c *Client) mayChange(ctx context.Context, system, what string, at authorizationv1.ResourceAttributes) error {
	review, err := c.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &at},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("ask what the kubeconfig may do: %w", c.translate(err))
	case !review.Status.Allowed:
		return fault.WithHint(fault.Refusedf("the kubeconfig may not %s", what), "where a node is away longer than %s waits, a roll has it wait longer, and needs that right", system)
	}
	return nil
}
