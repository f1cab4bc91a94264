// Package pagetest holds objects of an operator without Kubernetes, for tests of the pages.
package pagetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/recast-sh/recast/api/v1alpha1"
)

type Store struct {
	client.Client
	decoder runtime.Decoder
}

func New() (Store, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return Store{}, err
	}
	index := func(o client.Object) []string { return []string{o.(*v1alpha1.ImageRoll).Spec.ClusterName} }
	c := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.ImageRoll{}, "spec.clusterName", index).Build()
	return Store{c, serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()}, nil
}

// Put creates or replaces the objects in a stream of YAML documents, each as soon as its document is read.
func (s Store) Put(ctx context.Context, from io.Reader) error {
	for documents := yaml.NewYAMLReader(bufio.NewReader(from)); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		decoded, _, err := s.decoder.Decode(text, nil, nil)
		if err != nil {
			return fmt.Errorf("%w:\n%s", err, text)
		}
		if err := s.put(ctx, decoded.(client.Object)); err != nil {
			return err
		}
	}
}

func (s Store) put(ctx context.Context, o client.Object) error {
	there := o.DeepCopyObject().(client.Object)
	err := s.Get(ctx, client.ObjectKeyFromObject(o), there)
	if apierrors.IsNotFound(err) {
		return s.Create(ctx, o)
	}
	if err != nil {
		return err
	}
	o.SetResourceVersion(there.GetResourceVersion())
	return s.Update(ctx, o)
}
