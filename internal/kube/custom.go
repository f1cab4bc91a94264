package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/foreign"
)

// groups lists the API groups that the cluster serves; a missing one is not
// installed. client-go's own discovery takes a 403 or 404 for an empty list, which
// would hide what exists.
func (c *Client) groups(ctx context.Context) ([]metav1.APIGroup, error) {
	var list metav1.APIGroupList
	if err := c.api.Discovery().RESTClient().Get().AbsPath("/apis").Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list API groups: %w", c.translate(err))
	}
	return list.Groups, nil
}

// preferred is the cluster's preferred version of a group; ok is false if the group
// is not installed.
func preferred(groups []metav1.APIGroup, name string) (gv schema.GroupVersion, ok bool) {
	i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name })
	if i < 0 {
		return schema.GroupVersion{}, false
	}
	return schema.GroupVersion{Group: name, Version: groups[i].PreferredVersion.Version}, true
}

// supports reports whether a group is installed. It is an error if the version
// whose fields we know is missing: other versions could hide data.
func supports(groups []metav1.APIGroup, gv schema.GroupVersion) (bool, error) {
	i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group })
	if i < 0 {
		return false, nil
	}
	var served []string
	for _, v := range groups[i].Versions {
		served = append(served, v.Version)
	}
	if !slices.Contains(served, gv.Version) {
		return false, foreign.Error(fmt.Errorf("%s is served as %s only, recast knows %s", gv.Group, strings.Join(served, ", "), gv.Version))
	}
	return true, nil
}

// resources lists the resources of a group's version, without subresources.
func (c *Client) resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	var list metav1.APIResourceList
	path := []string{"/apis", gv.Group, gv.Version}
	if gv.Group == "" {
		path = []string{"/api", gv.Version}
	}
	if err := c.api.Discovery().RESTClient().Get().AbsPath(path...).Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list resources of %s: %w", gv, c.translate(err))
	}
	return slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool { return strings.Contains(r.Name, "/") }), nil
}

// listCustom lists custom resources of all namespaces; named restricts them to that
// name, "" does not.
func listCustom[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, named string) ([]T, error) {
	if named == "" {
		return listSelected[T](ctx, c, r, "", "")
	}
	return listSelected[T](ctx, c, r, "fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, named).String())
}

// listSelected is listCustom for those that a selector picks; "" picks all.
func listSelected[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, by, selector string) (all []T, err error) {
	request := func() *rest.Request {
		request := c.api.Discovery().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource)
		if selector != "" {
			request = request.Param(by, selector)
		}
		return request
	}
	err = eachJSON(ctx, c, request, func() { all = nil }, func(object T) { all = append(all, object) })
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.GroupResource(), err)
	}
	return all, nil
}
