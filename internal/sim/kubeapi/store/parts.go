package store

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func duplicate(obj Object) Object { return obj.DeepCopyObject().(Object) }

// merge is old with one part of obj, and says whether that differs from old. Fields of the
// server stay unchanged.
func merge(old, obj Object, part Part) (Object, bool) {
	var fresh Object
	if part == Status {
		fresh = duplicate(old)
		copyField(fresh, duplicate(obj), "Status")
	} else {
		fresh = duplicate(obj)
		if part != Whole {
			copyField(fresh, duplicate(old), "Status")
		}
		fresh.SetUID(old.GetUID())
		fresh.SetCreationTimestamp(old.GetCreationTimestamp())
		fresh.SetDeletionTimestamp(old.GetDeletionTimestamp())
		fresh.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
		fresh.SetGeneration(old.GetGeneration())
		if !equality.Semantic.DeepEqual(field(old, "Spec"), field(fresh, "Spec")) {
			fresh.SetGeneration(old.GetGeneration() + 1)
		}
	}
	fresh.SetResourceVersion(old.GetResourceVersion())
	fresh.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return fresh, !equality.Semantic.DeepEqual(old, fresh)
}

// field is a field of the object, nil if its type has none.
func field(obj Object, name string) any {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.Object[strings.ToLower(name)]
	}
	f := reflect.ValueOf(obj).Elem().FieldByName(name)
	if !f.IsValid() {
		return nil
	}
	return f.Interface()
}

func copyField(to, from Object, name string) {
	if u, ok := to.(*unstructured.Unstructured); ok {
		if v := field(from, name); v != nil {
			u.Object[strings.ToLower(name)] = v
		} else {
			delete(u.Object, strings.ToLower(name))
		}
		return
	}
	if f := reflect.ValueOf(to).Elem().FieldByName(name); f.IsValid() {
		f.Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}

// ClearStatus clears the status, which a client may not set at creation.
func ClearStatus(obj Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		delete(u.Object, "status")
		return
	}
	if f := reflect.ValueOf(obj).Elem().FieldByName("Status"); f.IsValid() {
		f.SetZero()
	}
}
