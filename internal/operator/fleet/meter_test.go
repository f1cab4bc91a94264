package fleet

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// meter counts calls, and kills the operator at one of them.
type meter struct {
	calls, requests int // all, and those that reach an API server: a cache answers the others
	writes          int
	killAt          int  // 0: never
	late            bool // the call is carried out, but the operator does not live to see it
	dead            bool
}

// do makes a call.
func (m *meter) do(request, write bool, call func() error) error {
	if m.dead {
		return errKilled
	}
	m.calls++
	if request {
		m.requests++
	}
	if write {
		m.writes++
	}
	if m.calls != m.killAt {
		return call()
	}
	m.dead = true
	if m.late {
		_ = call() // its outcome is lost
	}
	return errKilled
}

// wrap is a client whose calls are counted. A live one reads from the API server.
func (m *meter) wrap(c client.WithWatch, live bool, made map[string]int) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return m.do(live, false, func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return m.do(live, false, func() error { return c.List(ctx, list, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return m.do(true, true, func() error {
				if kind, name := identity(o); kind == "ImageRoll" && c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &v1alpha1.ImageRoll{}) != nil {
					made[name]++
				}
				return c.Apply(ctx, o, opts...)
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return m.do(true, true, func() error { return c.SubResource(sub).Patch(ctx, o, patch, opts...) })
		},
	})
}

func identity(o runtime.ApplyConfiguration) (kind, name string) {
	b, err := json.Marshal(o)
	if err != nil {
		return "", ""
	}
	var u unstructured.Unstructured
	if u.UnmarshalJSON(b) != nil {
		return "", ""
	}
	return u.GetKind(), u.GetName()
}

type getter = func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error

// staleFleet reads an old FleetRoll from the cache.
func staleFleet(old *v1alpha1.FleetRoll) getter {
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if f, ok := o.(*v1alpha1.FleetRoll); ok {
			old.DeepCopyInto(f)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}
}

// staleCluster reads an old TalosCluster from the cache.
func staleCluster(old *v1alpha1.TalosCluster) getter {
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if f, ok := o.(*v1alpha1.TalosCluster); ok {
			old.DeepCopyInto(f)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}
}
