package kubeapi_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// A list comes in pages of one revision, while etcd has that revision.
func TestListsComeInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		r := widgets(true)
		l.Define(r)
		c := l.dynamic(t).Resource(r.GroupVersionResource)
		make := func(name string) {
			if _, err := c.Namespace("default").Create(t.Context(), widget(name, 1), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 {
			make(fmt.Sprintf("w%d", i))
		}
		var got, revisions []string
		o := metav1.ListOptions{Limit: 2}
		for {
			list, err := c.List(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range list.Items {
				got = append(got, w.GetName())
			}
			left := int64(0)
			if n := list.GetRemainingItemCount(); n != nil {
				left = *n
			}
			got, revisions = append(got, fmt.Sprintf("|%d", left)), append(revisions, list.GetResourceVersion())
			make(fmt.Sprintf("w0later%d", len(got))) // in no page: it is newer
			if o.Continue = list.GetContinue(); o.Continue == "" {
				break
			}
		}
		if diff := cmp.Diff([]string{"w0", "w1", "|3", "w2", "w3", "|1", "w4", "|0"}, got); diff != "" {
			t.Error(diff)
		}
		if revisions = slices.Compact(revisions); len(revisions) != 1 {
			t.Errorf("pages of the revisions %v", revisions)
		}
		list, err := c.List(t.Context(), metav1.ListOptions{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		_, err = c.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: list.GetContinue()})
		status, is := err.(apierrors.APIStatus)
		if !is || !apierrors.IsResourceExpired(err) || status.Status().Continue == "" {
			t.Fatalf("an old token: %v", err)
		}
		rest, err := c.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: status.Status().Continue})
		if err != nil || len(rest.Items) != 6 { // present objects, including newer ones
			t.Errorf("the rest as it is now: %d, %v", len(rest.Items), err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{ResourceVersion: "1", Continue: list.GetContinue()}); !apierrors.IsBadRequest(err) {
			t.Errorf("a token and a revision: %v", err)
		}
		selected, err := c.List(t.Context(), metav1.ListOptions{Limit: 1, LabelSelector: "!none"})
		if err != nil || selected.GetContinue() == "" || selected.GetRemainingItemCount() != nil {
			t.Errorf("a list with a selector tells how many are left: %v, %v", selected, err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
			t.Errorf("no token at all: %v", err)
		}
	})
}
