{{- define "equipoise.labels" -}}
app.kubernetes.io/name: equipoise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "equipoise.broker" -}}
{{ include "equipoise.labels" . }}
app.kubernetes.io/component: broker
{{- end }}

{{- define "equipoise.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The settings of a broker, as options of its command. JSON, because Go prints large numbers of values as 1e+06. */}}
{{- define "equipoise.settings" -}}
{{- $name := .Release.Name }}
{{- $inside := printf "%s.$(POD_NAMESPACE)" $name }}
{{- $settings := dict "http_hosts" (list $name $inside (print $inside ".svc") (print $inside ".svc.cluster.local") | join ",") }}
{{- if .Values.secrets.tls }}
{{- $_ := set $settings "tls_certificate" "/etc/equipoise/tls/tls.crt" }}
{{- $_ := set $settings "tls_key" "/etc/equipoise/tls/tls.key" }}
{{- $_ := set $settings "tls_ca" "/etc/equipoise/tls/ca.crt" }}
{{- end }}
{{- if .Values.secrets.tokens }}
{{- $_ := set $settings "authentication" true }}
{{- $_ := set $settings "token_public_key" "file:///etc/equipoise/tokens/public.key" }}
{{- $_ := set $settings "broker_token" "file:///etc/equipoise/tokens/broker.token" }}
{{- end }}
{{- range $key, $value := merge (deepCopy .Values.settings) $settings }}
- --set
- {{ printf "%s=%s" $key (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end }}

{{- define "equipoise.channel" -}}
- { name: EQUIPOISE_LOG, value: {{ .Values.log | quote }} }
{{- if .Values.secrets.kafka }}
- { name: EQUIPOISE_KAFKA_CONFIG_FILE, value: /etc/equipoise/kafka/kafka.properties }
{{- end }}
{{- end }}

{{- define "equipoise.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- end }}
