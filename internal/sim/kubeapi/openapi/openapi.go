// Package openapi describes the kinds that a lab's API serves as OpenAPI v3, for kubectl
// explain, apply and diff. Documents are made when they are asked for and not kept.
package openapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// Path returns the path of the documents of a group and version: "apis/apps/v1".
func Path(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// Index lists the documents of the served resources. Clients keep a document as long as its hash stays: the hash is
// computed from what is served.
func Index(served []store.Resource, version string) ([]byte, error) {
	paths := object{}
	for _, r := range served {
		var kinds []string
		for _, other := range served {
			if other.GroupVersion() == r.GroupVersion() {
				kinds = append(kinds, other.Kind)
			}
		}
		at := Path(r.GroupVersion())
		hash := sha256.Sum256([]byte(strings.Join(append(kinds, version), ",")))
		paths[at] = object{"serverRelativeURL": fmt.Sprintf("/openapi/v3/%s?hash=%X", at, hash)}
	}
	return json.Marshal(object{"paths": paths})
}

// Document describes the served resources of a group and version.
func Document(scheme *runtime.Scheme, served []store.Resource, gv schema.GroupVersion) ([]byte, error) {
	s, paths := schemas{scheme, gv, object{}}, object{}
	for _, r := range served {
		if r.GroupVersion() != gv {
			continue
		}
		name, err := s.add(r)
		if err != nil {
			return nil, err
		}
		describe(paths, r, name)
	}
	s.schema(reflect.TypeFor[metav1.DeleteOptions]())
	s.schema(reflect.TypeFor[metav1.Patch]())
	s.schema(reflect.TypeFor[metav1.Status]())
	return json.Marshal(object{
		"openapi": "3.0.0", "info": object{"title": "Kubernetes", "version": "unversioned"},
		"paths": paths, "components": object{"schemas": s.models},
	})
}

// add adds the models of a resource's object and list, and returns the object's name. A
// custom resource has no schema here, so anything is allowed in it.
func (s schemas) add(r store.Resource) (string, error) {
	names := map[string]string{}
	for _, kind := range []string{r.Kind, r.Kind + "List"} {
		gvk := r.GroupVersion().WithKind(kind)
		if !s.scheme.Recognizes(gvk) {
			parts := strings.Split(r.Group, ".")
			slices.Reverse(parts)
			names[kind] = strings.Join(append(parts, r.Version, kind), ".")
			s.models[names[kind]] = object{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-group-version-kind": []object{kindOf(gvk)},
			}
			continue
		}
		empty, err := s.scheme.New(gvk)
		if err != nil {
			return "", fmt.Errorf("describe %s: %w", kind, err)
		}
		ref := s.schema(reflect.TypeOf(empty))["$ref"].(string)
		names[kind] = ref[strings.LastIndexByte(ref, '/')+1:]
	}
	return names[r.Kind], nil
}

func kindOf(gvk schema.GroupVersionKind) object {
	return object{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
}

type object = map[string]any

// schemas are the models of a document by name, made from Go types and from what the types say about themselves. The
// models lack what only the comments of the types' sources say: list types, enumerations and most defaults.
type schemas struct {
	scheme *runtime.Scheme
	of     schema.GroupVersion // the document's
	models object
}

// The methods that types of Kubernetes' API have for kube-openapi.
type (
	named      interface{ OpenAPIModelName() string }
	typed      interface{ OpenAPISchemaType() []string }
	formatted  interface{ OpenAPISchemaFormat() string }
	several    interface{ OpenAPIV3OneOfTypes() []string }
	documented interface{ SwaggerDoc() map[string]string }
)

// schema returns the schema of a type: a reference if the type has a name.
func (s schemas) schema(t reflect.Type) object {
	if t.Kind() == reflect.Pointer {
		return s.schema(t.Elem())
	}
	if n, is := reflect.Zero(t).Interface().(named); is {
		name := n.OpenAPIModelName()
		if s.models[name] == nil {
			s.models[name] = object{} // it may contain itself
			s.models[name] = s.kinds(t, s.model(t))
		}
		return reference(name)
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return object{"type": "integer", "format": "int32"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number", "format": "double"}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.schema(t.Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "format": "byte"}
		}
		return object{"type": "array", "items": s.schema(t.Elem())}
	}
	return s.model(t)
}

func reference(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func (s schemas) model(t reflect.Type) object {
	zero := reflect.Zero(t).Interface()
	m := object{"type": "object"}
	if d := docs(zero)[""]; d != "" {
		m["description"] = d
	}
	if f, is := zero.(formatted); is && f.OpenAPISchemaFormat() != "" {
		m["format"] = f.OpenAPISchemaFormat()
	}
	if types, is := zero.(several); is {
		var one []object
		for _, t := range types.OpenAPIV3OneOfTypes() {
			one = append(one, object{"type": t})
		}
		delete(m, "type")
		m["oneOf"] = one
		return m
	}
	if is, own := zero.(typed); own {
		m["type"] = is.OpenAPISchemaType()[0]
		return m
	}
	if t.Kind() != reflect.Struct {
		return m
	}
	properties, must := object{}, []string{}
	s.fields(t, properties, &must)
	if len(properties) > 0 {
		m["properties"] = properties
	}
	if len(must) > 0 {
		m["required"] = must
	}
	return m
}

// kinds adds to a model its kinds: those in the document's group and version, and those in v1.
func (s schemas) kinds(t reflect.Type, m object) object {
	o, is := reflect.New(t).Interface().(runtime.Object)
	if !is {
		return m
	}
	gvks, _, err := s.scheme.ObjectKinds(o)
	if err != nil { // it has none
		return m
	}
	var kinds []object
	for _, gvk := range gvks {
		if gvk.GroupVersion() == s.of || gvk.Group == "" && gvk.Version == "v1" {
			kinds = append(kinds, kindOf(gvk))
		}
	}
	m["x-kubernetes-group-version-kind"] = kinds
	return m
}

// fields adds the fields of a struct, and of the structs that it embeds.
func (s schemas) fields(t reflect.Type, properties object, must *[]string) {
	described := docs(reflect.Zero(t).Interface())
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
			continue
		case strings.Contains(options, "inline") || name == "" && f.Anonymous:
			s.fields(f.Type, properties, must)
			continue
		}
		if required(t, name, !strings.Contains(options, "omit")) {
			*must = append(*must, name)
		}
		properties[name] = s.property(f, described[name])
	}
}

func (s schemas) property(f reflect.StructField, description string) object {
	p := s.schema(f.Type)
	if p["$ref"] != nil {
		_, scalar := reflect.Zero(f.Type).Interface().(typed)
		p = object{"allOf": []object{p}}
		if f.Type.Kind() == reflect.Struct && !scalar {
			p["default"] = object{}
		}
	}
	if description != "" {
		p["description"] = description
	}
	for extension, tag := range map[string]string{"x-kubernetes-patch-strategy": "patchStrategy", "x-kubernetes-patch-merge-key": "patchMergeKey"} {
		if v := f.Tag.Get(tag); v != "" {
			p[extension] = v
		}
	}
	return p
}

func docs(of any) map[string]string {
	if d, is := of.(documented); is {
		return d.SwaggerDoc()
	}
	return nil
}

const metaV1 = "io.k8s.apimachinery.pkg.apis.meta.v1."

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
	}
	one := append(slices.Clone(in), inPath("name"))
	paths[all+"/{name}"] = item(r, model, one)
	if r.Status {
		status := item(r, model, one)
		delete(status, "delete")
		paths[all+"/{name}/status"] = status
	}
}

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

// unlike lists the fields that are required although their JSON is omitted if empty, or the other way around: the
// comments of their types say so (+required, +optional). internal/e2e/kubernetes compares the models with the models
// that Kubernetes publishes.
var unlike = map[string][]string{
	"io.k8s.api.apps.v1.DaemonSet":                       {"spec"},
	"io.k8s.api.apps.v1.DaemonSetCondition":              {"status", "type"},
	"io.k8s.api.apps.v1.Deployment":                      {"spec"},
	"io.k8s.api.apps.v1.DeploymentCondition":             {"status", "type"},
	"io.k8s.api.apps.v1.ReplicaSet":                      {"spec"},
	"io.k8s.api.apps.v1.ReplicaSetCondition":             {"status", "type"},
	"io.k8s.api.apps.v1.StatefulSet":                     {"spec"},
	"io.k8s.api.apps.v1.StatefulSetCondition":            {"status", "type"},
	"io.k8s.api.apps.v1.StatefulSetOrdinals":             {"start"},
	"io.k8s.api.apps.v1.StatefulSetSpec":                 {"serviceName"},
	"io.k8s.api.apps.v1.StatefulSetStatus":               {"availableReplicas"},
	"io.k8s.api.core.v1.AzureFilePersistentVolumeSource": {"secretNamespace"},
	"io.k8s.api.core.v1.ContainerImage":                  {"names"},
	"io.k8s.api.core.v1.ContainerRestartRule":            {"action"},
	"io.k8s.api.core.v1.ContainerRestartRuleOnExitCodes": {"operator"},
	"io.k8s.api.core.v1.Event":                           {"reportingComponent", "reportingInstance"},
	"io.k8s.api.core.v1.GRPCAction":                      {"service"},
	"io.k8s.api.core.v1.ImageVolumeStatus":               {"imageRef"},
	"io.k8s.api.core.v1.NodeRuntimeHandler":              {"name"},
	"io.k8s.api.core.v1.PodCertificateProjection":        {"keyType", "signerName"},
	"io.k8s.api.core.v1.ProjectedVolumeSource":           {"sources"},
	"io.k8s.api.core.v1.TypedLocalObjectReference":       {"apiGroup"},
	"io.k8s.api.core.v1.TypedObjectReference":            {"apiGroup"},
	"io.k8s.api.policy.v1.PodDisruptionBudgetStatus":     {"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"},
	"io.k8s.api.rbac.v1.ClusterRole":                     {"rules"},
	"io.k8s.api.rbac.v1.Role":                            {"rules"},
	"io.k8s.api.rbac.v1.RoleRef":                         {"apiGroup"},
	"io.k8s.api.storage.v1.CSINodeDriver":                {"topologyKeys"},
}

// required reports whether a field of a struct is required. always says that the field's JSON is never omitted.
func required(t reflect.Type, field string, always bool) bool {
	n, is := reflect.Zero(t).Interface().(named)
	return always != (is && slices.Contains(unlike[n.OpenAPIModelName()], field))
}
