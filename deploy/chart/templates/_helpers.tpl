{{- define "aliquot.name" -}}
{{- if contains "aliquot" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-aliquot" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The labels of a part: (list . "node"). */}}
{{- define "aliquot.labels" -}}
{{- $root := index . 0 -}}
{{ include "aliquot.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "aliquot.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "aliquot.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The resources of all chosen presets, one a line. */}}
{{- define "aliquot.resources" -}}
{{- $presets := .Files.Get "files/presets.yaml" | fromYaml -}}
{{- $seen := dict -}}
{{- range .Values.presets -}}
{{- $preset := . -}}
{{- range index $presets $preset -}}
{{- if hasKey $seen . -}}
{{- fail (printf "presets: %s and %s both use %s; choose one of them" (get $seen .) $preset .) -}}
{{- end -}}
{{- $_ := set $seen . $preset }}
- {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "aliquot.tlsSecret" -}}
{{ .Values.scheduler.tls.existingSecret | default (printf "%s-scheduler-tls" (include "aliquot.name" .)) }}
{{- end -}}

{{/* The extender's address, as its certificate has it. */}}
{{- define "aliquot.extenderHost" -}}
{{ include "aliquot.name" . }}-scheduler.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* What a container needs that touches nothing of its node. */}}
{{- define "aliquot.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* kube-scheduler's version is the cluster's: v1.36.4 of v1.36.4-eks-1. */}}
{{- define "aliquot.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.kubeScheduler.image.repository }}:{{ .Values.kubeScheduler.image.tag | default $version }}
{{- end -}}

{{/* Where the pods of a Deployment go: (list . VALUES "component"). */}}
{{- define "aliquot.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "aliquot.selector" (list $root (index . 2)) | nindent 14 }}
{{- end }}
{{- end -}}
