package fleet

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Field owners of server-side apply. The annotation of a TalosCluster has its own: what is
// applied replaces all that its owner has set before.
const (
	fieldOwner       = "recast-operator"
	targetFieldOwner = "recast-operator-fleet"
)

// start makes the ImageRolls that running members do not have yet.
func (p *pass) start(ctx context.Context) error {
	var problems []error
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning || m.Roll != "" {
			continue
		}
		if err := p.startMember(ctx, m); err != nil {
			problems = append(problems, fmt.Errorf("begin the roll of TalosCluster %s: %w", m.Cluster, err))
		}
	}
	return errors.Join(problems...)
}

// startMember sets the target of a cluster, then makes its ImageRoll, which is planned with that
// target. It may be repeated after any failure: what is there already is not made again.
func (p *pass) startMember(ctx context.Context, m *v1alpha1.Member) error {
	name := rollName(p.fleet.Name, m.Cluster)
	made := p.rolls[name]
	if made == nil {
		var roll v1alpha1.ImageRoll
		err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &roll)
		switch {
		case err == nil && !owns(p.fleet, &roll):
			p.blocked = append(p.blocked, fmt.Sprintf("TalosCluster %s waits until ImageRoll %s is deleted, which is not of this FleetRoll", m.Cluster, name))
			p.lookAgain(p.now.Add(startAgain))
			return nil
		case err == nil:
			made = &roll
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	if made == nil {
		ready, err := p.setTarget(ctx, m.Cluster)
		if err != nil || !ready {
			return err
		}
		if err := p.makeRoll(ctx, name, m.Cluster); err != nil {
			return err
		}
	}
	m.Roll = name
	return nil
}

// setTarget sets the annotation with the version on a TalosCluster. It is ready when the cache
// has it, because the reconciler of ImageRolls reads the target from the same cache.
func (p *pass) setTarget(ctx context.Context, cluster string) (ready bool, err error) {
	want, c := p.fleet.Spec.TalosVersion, p.clusters[cluster]
	if want == "" || c.Annotations[v1alpha1.AnnotationTalosTarget] == want {
		return true, nil
	}
	o := object("TalosCluster", p.fleet.Namespace, cluster, map[string]any{
		"uid":         string(c.UID), // else apply would make a cluster that was just deleted
		"annotations": map[string]any{v1alpha1.AnnotationTalosTarget: want},
	})
	if err := p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(targetFieldOwner), client.ForceOwnership); err != nil {
		return false, err
	}
	var cached v1alpha1.TalosCluster
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: cluster}, &cached); err != nil {
		return false, err
	}
	if cached.Annotations[v1alpha1.AnnotationTalosTarget] == want {
		return true, nil
	}
	p.lookAgain(p.now.Add(cacheAgain))
	return false, nil
}

func (p *pass) makeRoll(ctx context.Context, name, cluster string) error {
	o := object("ImageRoll", p.fleet.Namespace, name, map[string]any{
		"labels": map[string]any{v1alpha1.LabelFleet: p.fleet.Name, v1alpha1.LabelCluster: cluster},
		"ownerReferences": []any{map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetRoll", "name": p.fleet.Name, "uid": string(p.fleet.UID),
		}},
	})
	o.Object["spec"] = map[string]any{"clusterName": cluster, "action": string(v1alpha1.ActionNodes), "approved": true}
	return p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldOwner), client.ForceOwnership)
}

func object(kind, namespace, name string, metadata map[string]any) *unstructured.Unstructured {
	metadata["namespace"], metadata["name"] = namespace, name
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": metadata}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return o
}

// rollName is the name of a cluster's ImageRoll, at most 50 characters.
func rollName(fleet, cluster string) string {
	const most, kept = 50, 41
	name := fleet + "-" + cluster
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s-%.4x", name[:kept], sha256.Sum256([]byte(name)))
}
