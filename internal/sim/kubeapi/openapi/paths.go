package openapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

const metaV1 = "io.k8s.apimachinery.pkg.apis.meta.v1."

// describe adds the paths of a resource whose objects have that model.
func describe(paths object, r store.Resource, model string) {
	all, in := "/"+Path(r.GroupVersion())+"/"+r.Resource, []object{}
	if r.Namespaced {
		paths[all] = object{"get": operation(r, "list", "list or watch objects of kind "+r.Kind, model+"List", selecting...)}
		all = "/" + Path(r.GroupVersion()) + "/namespaces/{namespace}/" + r.Resource
		in = append(in, inPath("namespace"))
	}
	create := operation(r, "post", "create a "+r.Kind, model, writing...)
	create["requestBody"] = body(model, "*/*")
	paths[all] = object{
		"parameters": in,
		"get":        operation(r, "list", "list or watch objects of kind "+r.Kind, model+"List", selecting...),
		"post":       create,
		"delete":     operation(r, "deletecollection", "delete collection of "+r.Kind, metaV1+"Status", selecting...),
	}
	one := append(slices.Clone(in), inPath("name"))
	paths[all+"/{name}"] = item(r, model, one)
	if r.Status {
		status := item(r, model, one)
		delete(status, "delete")
		paths[all+"/{name}/status"] = status
	}
}

// item are the operations on one object.
func item(r store.Resource, model string, parameters []object) object {
	replace := operation(r, "put", "replace the specified "+r.Kind, model, writing...)
	replace["requestBody"] = body(model, "*/*")
	remove := operation(r, "delete", "delete a "+r.Kind, metaV1+"Status", "dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
	remove["requestBody"] = body(metaV1+"DeleteOptions", "*/*")
	patch := operation(r, "patch", "partially update the specified "+r.Kind, model, append(slices.Clone(writing), "force")...)
	kinds := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType}
	if store.BuiltIn(r) {
		kinds = append(kinds, types.StrategicMergePatchType)
	}
	patch["requestBody"] = body(metaV1+"Patch", kinds...)
	return object{
		"parameters": parameters,
		"get":        operation(r, "get", "read the specified "+r.Kind, model),
		"put":        replace, "patch": patch, "delete": remove,
	}
}

// The query parameters of writes and of lists.
var (
	writing   = []string{"dryRun", "fieldManager", "fieldValidation"}
	selecting = []string{"continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch"}
)

func operation(r store.Resource, action, description, model string, parameters ...string) object {
	given := []object{}
	for _, name := range parameters {
		given = append(given, object{"name": name, "in": "query", "schema": object{"type": typeOf(name), "uniqueItems": true}})
	}
	return object{
		"description": description, "parameters": given,
		"responses":           object{"200": object{"description": "OK", "content": content(model, runtime.ContentTypeJSON)}},
		"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kindOf(r.GVK()),
	}
}

func typeOf(parameter string) string {
	switch parameter {
	case "limit", "timeoutSeconds", "gracePeriodSeconds":
		return "integer"
	case "watch", "force", "sendInitialEvents", "orphanDependents":
		return "boolean"
	}
	return "string"
}

func inPath(name string) object {
	return object{"name": name, "in": "path", "required": true, "schema": object{"type": "string", "uniqueItems": true}}
}

func body[T ~string](model string, media ...T) object {
	return object{"content": content(model, media...)}
}

func content[T ~string](model string, media ...T) object {
	out := object{}
	for _, m := range media {
		out[string(m)] = object{"schema": reference(model)}
	}
	return out
}
