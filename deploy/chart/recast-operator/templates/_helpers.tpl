{{- define "recast.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An object of monitoring with more labels. */}}
{{- define "recast.monitor" -}}
{{- $object := index . 0 | replace "recast-system" (index . 1) | fromYaml -}}
{{- $_ := set $object.metadata "labels" (merge (dict) (index . 2) $object.metadata.labels) -}}
{{ toYaml $object }}
{{- end -}}
