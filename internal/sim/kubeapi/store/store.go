// Package store keeps the Kubernetes objects of a lab: in [Memory], or in a real API
// server ([Remote]), both behind the interface [Store].
package store

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is any Kubernetes object that has metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Part says which part of an object an update may change.
type Part string

// The parts. An update of one part leaves the rest unchanged.
const (
	Main   Part = ""
	Status Part = "status"
	Whole  Part = "whole" // both: a custom resource without a status subresource
)

// Store reads and writes objects as an API server would: it assigns UIDs, revisions and
// generations, refuses stale writes, deletes pods gracefully and waits for finalizers.
// Errors are API statuses.
//
// Returned objects are shared: copy one before changing it.
type Store interface {
	Get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error)
	// List returns the objects of a namespace ("" for all), ordered by namespace
	// and name, and the revision at which they were read.
	List(ctx context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error)
	Create(ctx context.Context, r schema.GroupVersionResource, obj Object) (Object, error)
	// Update writes one part. It is a conflict if obj has a revision that is not the latest.
	Update(ctx context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error)
	// Delete returns the deleted object, or the object with its deletion timestamp.
	Delete(ctx context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error)
	// Watch starts after that revision, or now if it is "".
	Watch(ctx context.Context, r schema.GroupVersionResource, revision string) (Watch, error)
}

// Event is a change of one object.
type Event struct {
	Type   watch.EventType
	Object Object
	Before Object // nil for an added object
}

// Watch yields the changes of one resource in order.
type Watch interface {
	// Next waits for the next change, or until ctx ends. A Gone error says that the reader was
	// too slow and must list again.
	Next(ctx context.Context) (Event, error)
	Stop()
}
