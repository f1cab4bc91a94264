package kubeapi

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/table"
)

// tabular is how a client wants objects as a table.
type tabular struct {
	version schema.GroupVersion
	include metav1.IncludeObjectPolicy
}

// wantsTable is nil unless the client prefers a table to the objects.
func wantsTable(r *http.Request) (*tabular, error) {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		version := schema.GroupVersion{Group: params["g"], Version: params["v"]}
		switch {
		case params["as"] == "":
			return nil, nil
		case params["as"] != "Table" || media != runtime.ContentTypeJSON || version != metav1.SchemeGroupVersion && version != metav1beta1.SchemeGroupVersion:
			continue
		}
		options := &metav1.TableOptions{IncludeObject: metav1.IncludeObjectPolicy(r.URL.Query().Get("includeObject"))}
		if errs := validation.ValidateTableOptions(options); len(errs) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0]))
		}
		return &tabular{version, options.IncludeObject}, nil
	}
	return nil, nil
}

// tabled is an answer about the target's objects as the client wants it: as it is, or as a
// table (asTable in apiserver's endpoints/handlers/response.go).
func (s *Server) tabled(r *http.Request, t target, a answer) (answer, error) {
	as, err := wantsTable(r)
	if err != nil || as == nil {
		return a, err
	}
	if a.watch != nil {
		a.watch.as = as
		return a, nil
	}
	if _, is := a.body.(*metav1.Status); is || a.body == nil {
		return a, nil
	}
	a.body, err = s.table(as, t.resource.GVK(), a.body)
	return a, err
}

func (s *Server) table(as *tabular, gvk schema.GroupVersionKind, body runtime.Object) (runtime.Object, error) {
	prototype, err := s.newObject(gvk)
	if err != nil {
		return nil, err
	}
	objects := []runtime.Object{body}
	list := meta.IsListType(body)
	if list {
		if objects, err = meta.ExtractList(body); err != nil {
			return nil, err
		}
	}
	out, err := table.Of(prototype.(metav1.Object), objects)
	if err != nil {
		return nil, err
	}
	out.SetGroupVersionKind(as.version.WithKind("Table"))
	if of, is := body.(metav1.ListInterface); is && list {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = of.GetResourceVersion(), of.GetContinue(), of.GetRemainingItemCount()
	} else {
		out.ResourceVersion = body.(metav1.Object).GetResourceVersion()
	}
	for i := range out.Rows {
		row := &out.Rows[i].Object
		switch as.include {
		case metav1.IncludeNone:
			row.Object = nil
		case metav1.IncludeObject:
			row.Object = s.typed(row.Object, gvk)
		default:
			partial := meta.AsPartialObjectMetadata(row.Object.(metav1.Object))
			partial.SetGroupVersionKind(as.version.WithKind("PartialObjectMetadata"))
			row.Object = partial
		}
	}
	return out, nil
}
