package kubeapi_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// A list comes in pages of one revision, as long as etcd still has it.
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
		var got []string
		o := metav1.ListOptions{Limit: 2}
		for {
			list, err := c.List(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range list.Items {
				got = append(got, w.GetName())
			}
			got = append(got, "|")
			make(fmt.Sprintf("w0later%d", len(got))) // in no page: it is younger
			if o.Continue = list.GetContinue(); o.Continue == "" {
				break
			}
		}
		if diff := cmp.Diff([]string{"w0", "w1", "|", "w2", "w3", "|", "w4", "|"}, got); diff != "" {
			t.Error(diff)
		}
		list, err := c.List(t.Context(), metav1.ListOptions{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		if _, err := c.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: list.GetContinue()}); !apierrors.IsResourceExpired(err) {
			t.Errorf("an old token: %v", err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
			t.Errorf("no token at all: %v", err)
		}
	})
}
