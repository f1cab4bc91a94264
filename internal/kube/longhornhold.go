package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// holdAnnotation is JSON of a replica.Memo, on the setting that it is about.
const holdAnnotation = "recast.dev/hold"

type longhornSetting struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Value    string            `json:"value"`
}

// longhornHeld reads how long Longhorn waits; none if the setting is missing.
func (c *Client) longhornHeld(ctx context.Context) ([]replica.Setting, error) {
	all, err := c.longhornWaits(ctx)
	return c.waitSettings(all), err
}

func (c *Client) longhornWaits(ctx context.Context) ([]longhornSetting, error) {
	return listCustom[longhornSetting](ctx, c, longhornVersion.WithResource("settings"), longhornWait)
}

// longhornSettings reads how long Longhorn waits, to change it; repeat translates its errors.
func (c *Client) longhornSettings(ctx context.Context) ([]replica.Setting, error) {
	body, err := c.api.Discovery().RESTClient().Get().AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "settings").
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, longhornWait).String()).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list struct{ Items []longhornSetting }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("decode settings of Longhorn: %w", err)
	}
	if len(list.Items) != 1 {
		return nil, fault.Refusedf("Longhorn has %d settings %s instead of one", len(list.Items), longhornWait)
	}
	return c.waitSettings(list.Items), nil
}

// longhornRight is what a change of the setting needs.
func (c *Client) longhornRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	all, err := c.longhornWaits(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Group: longhornVersion.Group, Resource: "settings", Verb: "patch", Name: longhornWait, Namespace: all[0].Metadata.Namespace,
	}, nil
}

// waitSettings are those of all that say how long Longhorn waits. It is in seconds, from 0 on (longhorn-manager, types/setting.go,
// SettingDefinitionReplicaReplenishmentWaitInterval).
func (c *Client) waitSettings(all []longhornSetting) (settings []replica.Setting) {
	for _, s := range all {
		if s.Metadata.Name != longhornWait {
			continue
		}
		settings = append(settings, replica.Setting{
			System: longhornName, Name: longhornWait, Called: "Longhorn's setting " + longhornWait, Said: longhornWait + " of Longhorn",
			Value: s.Value, Unit: time.Second, Number: strconv.Atoi, Memo: s.memo, Undo: s.undo,
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				return c.writeLonghorn(ctx, s, value, m)
			},
		})
	}
	return settings
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

// undo is the command that gives back what the memo says, or only removes the memo where someone else has set the value since.
func (s longhornSetting) undo(m replica.Memo) (string, error) {
	if s.Value != m.Set {
		return s.forget(), nil
	}
	return fmt.Sprintf(`kubectl --namespace %s patch settings.longhorn.io %s --type merge --patch '{"value":"%s","metadata":{"annotations":{"%s":null}}}'`,
		s.Metadata.Namespace, longhornWait, m.Was, holdAnnotation), nil
}

// forget is the command that removes what recast remembers.
func (s longhornSetting) forget() string {
	return fmt.Sprintf("kubectl --namespace %s annotate settings.longhorn.io %s %s-", s.Metadata.Namespace, longhornWait, holdAnnotation)
}

// longhornPatience is how long Longhorn waits by itself, and what recast has made of that. holds is false
// where the setting is missing or no number.
func longhornPatience(settings []replica.Setting) (waits time.Duration, held []replica.Hold, holds bool, err error) {
	if len(settings) == 0 {
		return 0, nil, false, nil
	}
	s := settings[:1]
	if held, err = replica.Held(s); err != nil {
		return 0, nil, false, err
	}
	value := s[0].Value
	if len(held) > 0 && held[0].Now == held[0].Set {
		value = held[0].Was
	}
	seconds, err := strconv.Atoi(value)
	return time.Duration(seconds) * time.Second, held, err == nil, nil
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
