package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
)

const (
	// pageSize is the number of objects per request.
	pageSize = 500
	// listBegins bounds how often a list is restarted that expires while it is read.
	listBegins = 3
)

// inPages reads a list page by page: read requests one with these options and
// returns the token of the next. All pages are of one revision, which etcd drops
// after some minutes (kube-apiserver's --etcd-compaction-interval). Then the list is
// restarted: read must drop its results whenever o.Continue is "".
func inPages(read func(o metav1.ListOptions) (next string, err error)) error {
	for begun := 1; ; begun++ {
		err := pagesOnce(read)
		switch {
		case !apierrors.IsResourceExpired(err):
			return err
		case begun == listBegins:
			return fmt.Errorf("the list went out of date while it was read, %d times in a row: %w", begun, err)
		}
	}
}

func pagesOnce(read func(o metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := read(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}

// each passes every object of a list of client-go to see. begin is called before the first one, and again if the list
// is restarted.
func each[T any, L interface {
	runtime.Object
	metav1.ListInterface
}](c *Client, what string, list func(metav1.ListOptions) (L, error), begin func(), see func(*T)) error {
	err := inPages(func(o metav1.ListOptions) (string, error) {
		page, err := list(o)
		if err != nil {
			return "", c.translate(err)
		}
		if o.Continue == "" {
			begin()
		}
		err = apimeta.EachListItem(page, func(object runtime.Object) error {
			see(any(object).(*T))
			return nil
		})
		return page.GetContinue(), err
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// eachVolume is each for the PersistentVolumes.
func (c *Client) eachVolume(ctx context.Context, begin func(), see func(*corev1.PersistentVolume)) error {
	list := func(o metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
		return c.api.CoreV1().PersistentVolumes().List(ctx, o)
	}
	return each(c, "persistent volumes", list, begin, see)
}

// eachPod is each for pods that the options select.
func (c *Client) eachPod(ctx context.Context, namespace string, selected metav1.ListOptions, begin func(), see func(*corev1.Pod)) error {
	list := func(o metav1.ListOptions) (*corev1.PodList, error) {
		o.LabelSelector, o.FieldSelector = selected.LabelSelector, selected.FieldSelector
		return c.api.CoreV1().Pods(namespace).List(ctx, o)
	}
	return each(c, "pods", list, begin, see)
}

// eachJSON passes every object of a list to see, decoded from JSON. begin is called
// before the first one, and again if the list is restarted.
func eachJSON[T any](ctx context.Context, c *Client, list func() *rest.Request, begin func(), see func(T)) error {
	return inPages(func(o metav1.ListOptions) (string, error) {
		request := list().Param("limit", strconv.FormatInt(o.Limit, 10))
		if o.Continue != "" {
			request = request.Param("continue", o.Continue)
		}
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    *[]T            `json:"items"`
		}
		if err := c.getJSON(ctx, request, &page); err != nil {
			return "", err
		}
		if page.Items == nil {
			return "", errors.New("the answer is not a list")
		}
		if o.Continue == "" {
			begin()
		}
		for _, object := range *page.Items {
			see(object)
		}
		return page.Metadata.Continue, nil
	})
}

// getJSON reads an answer and keeps integers, because an expression compares them.
// Field names are case-sensitive.
func (c *Client) getJSON(ctx context.Context, request *rest.Request, into any) error {
	result := request.SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return c.translate(err)
	}
	body, err := result.Raw()
	if err != nil {
		return c.translate(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
