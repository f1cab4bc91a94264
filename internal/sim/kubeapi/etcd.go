package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/manifests"
)

// Stored is an object as stored in etcd.
type Stored struct {
	Key      string // "/registry/pods/default/web"
	Revision uint64
	Value    []byte // protobuf, or JSON of a custom resource
}

// Revision returns the number of writes to the lab's own store; with a real control plane it is 0, and the revision
// of etcd is that of the real control plane's etcd.
func (s *Server) Revision() uint64 {
	if memory, ok := s.store.(*store.Memory); ok {
		return memory.Revision()
	}
	return 0
}

// Dump returns everything that the API server stores in etcd.
func (s *Server) Dump(ctx context.Context) ([]Stored, error) {
	var out []Stored
	for _, r := range s.serves() {
		objects, _, err := s.store.List(ctx, r.GroupVersionResource, "")
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", r.Resource, err)
		}
		for _, o := range objects {
			value, err := s.stored(o, r.GVK())
			if err != nil {
				return nil, fmt.Errorf("store %s %s: %w", r.Kind, o.GetName(), err)
			}
			revision, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("store %s %s: %w", r.Kind, o.GetName(), err)
			}
			out = append(out, Stored{Key: registryKey(r, o), Revision: revision, Value: value})
		}
	}
	return out, nil
}

// stored encodes an object without the revision, which etcd itself keeps.
func (s *Server) stored(o store.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	o = s.typed(o, gvk).(store.Object)
	o.SetResourceVersion("")
	media := runtime.ContentTypeProtobuf
	if isCustom(o) {
		media = runtime.ContentTypeJSON
	}
	info, found := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), media)
	if !found {
		return nil, errors.New("no serializer for " + media)
	}
	var b bytes.Buffer
	err := info.Serializer.Encode(o, &b)
	return b.Bytes(), err
}

// registryKey returns the key of an object; two resources have special prefixes (kube-apiserver,
// DefaultStorageFactory and the registries' prefixes).
func registryKey(r store.Resource, o store.Object) string {
	path := r.Resource
	switch {
	case r.GroupVersionResource == store.Nodes():
		path = "minions"
	case r.Group == "" && r.Resource == "services":
		path = "services/specs"
	case !store.BuiltIn(r):
		path = r.Group + "/" + r.Resource
	}
	if r.Namespaced {
		path += "/" + o.GetNamespace()
	}
	return "/registry/" + path + "/" + o.GetName()
}

// Load replaces all objects by the content of an etcd.
func (s *Server) Load(all []Stored) error {
	objects := map[schema.GroupVersionResource][]store.Object{}
	for _, kv := range all {
		r, o, err := s.restored(kv.Value)
		if err != nil {
			return fmt.Errorf("read %s: %w", kv.Key, err)
		}
		objects[r] = append(objects[r], o)
	}
	if err := s.replace(objects); err != nil {
		return err
	}
	s.control.Restored()
	return nil
}

// Renew replaces all objects by the content of a new cluster with these objects of Talos.
func (s *Server) Renew(ctx context.Context, manifests []map[string]any) error {
	if err := s.replace(nil); err != nil {
		return err
	}
	return s.seed(ctx, manifests)
}

// Save returns a function that puts all objects, and what LINSTOR and Mayastor know, back as they are now. Nodes and their
// Leases are left: machines go on reporting.
func (s *Server) Save() (putBack func() error, err error) {
	memory, err := s.memory()
	if err != nil {
		return nil, err
	}
	objects, linstor, mayastor := memory.Objects(), s.control.LINSTOR.Save(), s.control.Mayastor.Save()
	return func() error {
		now := memory.Objects()
		objects[store.Nodes()], objects[store.Leases()] = now[store.Nodes()], now[store.Leases()]
		linstor()
		mayastor()
		return s.replace(objects)
	}, nil
}

func (s *Server) replace(objects map[schema.GroupVersionResource][]store.Object) error {
	memory, err := s.memory()
	if err == nil {
		memory.Replace(objects)
	}
	return err
}

func (s *Server) memory() (*store.Memory, error) {
	memory, ok := s.store.(*store.Memory)
	if !ok {
		return nil, errors.New("the objects are not the lab's own to replace")
	}
	return memory, nil
}

func (s *Server) restored(value []byte) (r schema.GroupVersionResource, o store.Object, err error) {
	var decoded runtime.Object
	if bytes.HasPrefix(value, []byte("{")) {
		decoded = &unstructured.Unstructured{}
		err = decoded.(*unstructured.Unstructured).UnmarshalJSON(value)
	} else {
		decoded, _, err = s.codecs.UniversalDeserializer().Decode(value, nil, nil)
	}
	if err != nil {
		return r, nil, err
	}
	o, ok := decoded.(store.Object)
	if !ok {
		return r, nil, fmt.Errorf("%T is not an object", decoded)
	}
	gvks, _, err := s.scheme.ObjectKinds(decoded)
	if isCustom(decoded) {
		gvks, err = []schema.GroupVersionKind{decoded.GetObjectKind().GroupVersionKind()}, nil
	}
	if err != nil {
		return r, nil, err
	}
	all := s.serves()
	i := slices.IndexFunc(all, func(r store.Resource) bool { return r.GVK() == gvks[0] })
	if i < 0 {
		return r, nil, fmt.Errorf("%s is not served", gvks[0])
	}
	return all[i].GroupVersionResource, o, nil
}

// seed creates the content of a new Talos cluster: namespaces and Talos' manifests. It
// leaves existing objects of a real server alone.
func (s *Server) seed(ctx context.Context, objects []map[string]any) error {
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		ns := &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}
		if _, err := s.store.Create(ctx, store.Namespaces(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
	}
	for _, o := range objects {
		u := &unstructured.Unstructured{Object: o}
		if err := s.Plant(ctx, u); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// Plant creates an object given as JSON, of any kind that the API serves.
func (s *Server) Plant(ctx context.Context, u *unstructured.Unstructured) error {
	served := s.serves()
	i := slices.IndexFunc(served, func(r store.Resource) bool { return r.GVK() == u.GroupVersionKind() })
	if i < 0 {
		return fmt.Errorf("%s is not served", u.GroupVersionKind())
	}
	obj := store.Object(u)
	if store.BuiltIn(served[i]) {
		typed, err := s.scheme.New(u.GroupVersionKind())
		if err != nil {
			return err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
			return err
		}
		obj = typed.(store.Object)
		complete(obj)
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	_, err := s.store.Create(ctx, served[i].GroupVersionResource, obj)
	return err
}

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

// complete does what the API server does to a new object: it moves a Secret's stringData to data.
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
