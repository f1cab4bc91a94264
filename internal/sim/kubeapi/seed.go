package kubeapi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/manifests"
)

// seed creates the content of a new Talos cluster: namespaces and Talos' manifests. It
// leaves existing objects of a real server alone.
func seed(ctx context.Context, s store.Store, objects []map[string]any) error {
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		ns := &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}
		if _, err := s.Create(ctx, store.Namespaces(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
	}
	scheme, err := store.NewScheme()
	if err != nil {
		return fmt.Errorf("register kinds: %w", err)
	}
	for _, o := range objects {
		if err := plant(ctx, s, scheme, &unstructured.Unstructured{Object: o}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make %s %s: %w", o["kind"], (&unstructured.Unstructured{Object: o}).GetName(), err)
		}
	}
	return nil
}

// plant creates an object given as JSON.
func plant(ctx context.Context, s store.Store, scheme *runtime.Scheme, u *unstructured.Unstructured) error {
	all := store.Resources()
	i := slices.IndexFunc(all, func(r store.Resource) bool { return r.GVK() == u.GroupVersionKind() })
	if i < 0 {
		return fmt.Errorf("%s is not served", u.GroupVersionKind())
	}
	typed, err := scheme.New(u.GroupVersionKind())
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
		return err
	}
	obj := typed.(store.Object)
	complete(obj)
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	_, err = s.Create(ctx, all[i].GroupVersionResource, obj)
	return err
}

// bootstrap are the default objects of a new cluster.
func bootstrap(version string) ([]map[string]any, error) {
	all, err := manifests.Render(manifests.Of(version))
	if err != nil {
		return nil, err
	}
	var objects []map[string]any
	for _, m := range all {
		objects = append(objects, m.Objects...)
	}
	return objects, nil
}

// complete does what the API server does to a new object: it moves a Secret's stringData
// to data.
func complete(obj store.Object) {
	s, ok := obj.(*corev1.Secret)
	if !ok || len(s.StringData) == 0 {
		return
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for name, text := range s.StringData {
		s.Data[name] = []byte(text)
	}
	s.StringData = nil
}
