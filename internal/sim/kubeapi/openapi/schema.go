package openapi

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object is a JSON object.
type object = map[string]any

// schemas are the models of a document by name, made from Go types and what those say about
// themselves. They lack what only the comments of the types' sources say: list types,
// enumerations and most defaults.
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

// of is the schema of a type: a reference if it has a name.
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

// kinds adds to a model which kinds it is of, in this document and in all of them.
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

// fields adds the fields of a struct, and of those that it embeds.
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
