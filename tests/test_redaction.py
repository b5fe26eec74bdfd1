"""REDACTION: secrets by shape, private passages, JSON, and what must stay as it is.

Every secret-like value is assembled at run time, so that no scanner of this repository finds one.
"""
from __future__ import annotations

import json
import random

import memory_tiered as m
import pytest

UPPER, LOWER, DIGITS, HEX = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789", "0123456789abcdef"
WORDS = "harbor lantern Cedar walnut Meteor pebble Saffron glacier otter Quartz".split()


# ---- a second corpus, of vendors and containers that the rules were not made for


def made(rng, alphabet, length):
    """A value as a generator issues it: of every kind of character in its alphabet."""
    while True:
        value = "".join(rng.choice(alphabet) for _ in range(length))
        kinds = [k for k in (UPPER, LOWER, DIGITS) if k[0] in alphabet]
        if all(any(c in k for c in value) for k in kinds):
            return value


def chosen_password(rng):
    return rng.choice([
        lambda: rng.choice(WORDS) + rng.choice("!@#$%^&*_-+") + str(rng.randrange(10, 99999)),
        lambda: rng.choice(WORDS).capitalize() + str(rng.randrange(100, 9999)) + rng.choice("!?*.#"),
        lambda: made(rng, UPPER + LOWER + DIGITS, rng.randrange(10, 20)),
        lambda: rng.choice(WORDS) + "_" + rng.choice(WORDS) + str(rng.randrange(10, 999)),
    ])()


ISSUED = {  # name in the container -> how its issuer makes it
    "NORTHWIND_API_KEY": lambda r: "nw" + "_live_" + made(r, UPPER + LOWER + DIGITS, 28),
    "acmeBillingToken": lambda r: "acb-" + made(r, HEX, 40),
    "VOLTMESH_SECRET": lambda r: made(r, UPPER + LOWER + DIGITS + "+/", 43) + "=",
    "kiln_access_token": lambda r: made(r, UPPER + LOWER + DIGITS + "-_", 36),
    "TIDEPOOL_CLIENT_SECRET": lambda r: "%s-%s-%s-%s-%s" % tuple(made(r, HEX, n) for n in (8, 4, 4, 4, 12)),
    "umbra.auth.token": lambda r: made(r, LOWER + DIGITS, 32),
    "X-Parcel-Api-Key": lambda r: made(r, UPPER + DIGITS, 26),
    "brightSigningKey": lambda r: made(r, HEX, 64),
    "FERRY_PAT": lambda r: "fry" + "_pat_" + made(r, UPPER + LOWER + DIGITS, 40),
    "webhook_secret": lambda r: made(r, UPPER + LOWER + DIGITS, 20),
    "OSPREY_ACCESS_KEY": lambda r: made(r, UPPER + LOWER + DIGITS, 22),
}
CHOSEN = ["DB_PASSWORD", "adminPassword", "SMTP_PASS", "ftp_passwd", "keystore.password", "wifi-psk", "ROOT_PWD", "passphrase"]

CONTAINERS = {
    "toml": '[service]\nregion = "eu-west-1"\n{n} = "{v}"\nretries = 4\n',
    "toml-literal": "[service]\n{n} = '{v}' # rotate\n",
    "ini": "[main]\nhost=db1\n{n}={v}\ntimeout=20\n",
    "ini-spaces": "; settings\n{n} = {v}\nlevel = info\n",
    "properties": "app.name=shop\napp.{n}: {v}\n",
    "yaml": "app:\n  {n}: {v}\n  replicas: 3\n",
    "yaml-quoted": "app:\n  - name: one\n    {n}: '{v}'\n",
    "yaml-block": "stringData:\n  {n}: |\n    {v}\n  user: bob\n",
    "yaml-env-pair": "env:\n  - name: {n}\n    value: \"{v}\"\n  - name: TZ\n    value: UTC\n",
    "json-env-pair": '[{{"name": "{n}", "value": "{v}"}}, {{"name": "TZ", "value": "UTC"}}]',
    "terraform": 'variable "{n}" {{\n  type    = string\n  default = "{v}"\n}}\n',
    "tfvars": '{n}      = "{v}"\ninstance_count = 3\n',
    "dockerfile-env": "FROM alpine:3.20\nENV {n}={v}\nRUN make\n",
    "dockerfile-env-space": "FROM alpine:3.20\nENV {n} {v}\nRUN make\n",
    "dockerfile-arg": 'ARG {n}="{v}"\nRUN make\n',
    "docker-run": "docker run -d -e {n}={v} --name web shop:2\n",
    "compose": "    environment:\n      - {n}={v}\n      - TZ=UTC\n",
    "powershell": "$env:{n} = \"{v}\"\nWrite-Host ok\n",
    "cmd-set": "set {n}={v}\r\necho done\r\n",
    "crlf-env": "PORT=80\r\n{n}={v}\r\nHOST=a\r\n",
    "setx": "setx {n} {v}\n",
    "json-nested-escape": '{{"log": "{{\\"cfg\\": \\"{{\\\\\\"{n}\\\\\\": \\\\\\"{v}\\\\\\"}}\\"}}"}}',
    "json-line": 'out: {{"level":"debug","{n}":"{v}","n":3}} end',
    "markdown-row": "| setting | value |\n|---|---|\n| {n} | {v} |\n| region | eu |\n",
    "markdown-code-row": "| `{n}` | `{v}` | used by ci |\n",
    "markdown-bold": "- **{n}**: `{v}`\n- region: eu\n",
    "markdown-column": "| host | {n} |\n|------|------|\n| db1 | {v} |\n",
    "csv-row": "name,content\n{n},{v}\nregion,eu\n",
    "csv-column": "id,{n},region\n7,{v},eu\n",
    "tsv-row": "{n}\t{v}\n",
    "xml-element": "<cfg><{n}>{v}</{n}><region>eu</region></cfg>",
    "xml-attribute": '<add key="{n}" value="{v}" />',
    "plist": "<key>{n}</key>\n\t<string>{v}</string>",
    "python": 'client = Client(region="eu", {n}="{v}", retries=2)\n',
    "python-dict": "cfg['{n}'] = '{v}'\n",
    "python-typed": 'class Settings:\n    {n}: str = "{v}"\n',
    "setdefault": 'os.environ.setdefault("{n}", "{v}")\n',
    "typescript": 'const {n}: string = "{v}";\n',
    "js-object": "export default {{ {n}: `{v}`, debug: false }}\n",
    "ruby": 'config = {{ :{n} => "{v}" }}\n',
    "php": "define('{n}', '{v}');\n",
    "go": '{n} := "{v}"\n',
    "rust": 'let {n}: &str = "{v}";\n',
    "cli-long": "deploytool push --region eu --{n} {v} --yes\n",
    "cli-equals": "deploytool push --{n}={v} --yes\n",
    "cli-quoted": "deploytool push --{n} '{v}' --yes\n",
    "http-header": "POST /v2/run HTTP/1.1\r\nHost: api.northwind.test\r\nX-{n}: {v}\r\nAccept: */*\r\n",
    "query": "GET https://api.northwind.test/v2/run?page=2&{n}={v}&sort=asc\n",
    "form": "grant_type=password&{n}={v}&scope=read\n",
    "log-kv": "2026-05-02 10:11:12,345 WARN boot - {n}={v} attempt=3\n",
    "log-colon": "[worker-3] loaded {n}: {v}\n",
    "diff": "-{n}: old\n+{n}: {v}\n timeout: 3\n",
    "connection": "Server=db1;User Id=app;{n}={v};Encrypt=true",
    "en-is": "By the way, the {n} is {v} and it expires in May.",
    "en-colon": "New {n} from ops today: {v}. Please update the runner.",
    "en-set": "please set {n} to {v}, then restart",
    "zh-is": "新的 {n} 是 {v}，别写进仓库。",
    "zh-wei": "把{n}设为{v}，重启网关",
    "zh-colon": "{n}：{v}（仅测试环境）",
    "zh-quoted": "{n} 改为「{v}」。",
}

PASSWORD_PROSE = [
    "我的登录密码是{v}，别告诉别人", "后台口令：{v}", "数据库密码为「{v}」，端口 3306", "登录密码改成了 {v} ，记一下",
    "服务器 root 密码 {v} 已经发给你", "密码（测试环境）：{v}", "WiFi 的密码现在是 {v} 。", "令牌 deploy 是 {v}", "密钥为「{v}」",
    "访问凭证：{v}", "The admin password is {v}, please rotate it", "passphrase for the key: {v}", "pwd {v} works on staging",
    "login: ops\npassword: {v}\n", "use ops / password {v} to sign in", "密码已经改成 {v} 了", "口令就是 {v}", "这台机器的密码設為 {v}",
]

WHOLE = {  # containers that bring their own names
    "curl-user": "curl -sS -u ops:{p} https://nexus.northwind.test/repo",
    "curl-user-quoted": 'curl --user "ops:{p}" https://nexus.northwind.test/',
    "mysql-p": "mysql -h db1 -uroot -p'{p}' shop",
    "mysql-p-bare": "mysqldump -u root -p{p} shop > a.sql",
    "sshpass": "sshpass -p {p} ssh ops@db1",
    "redis-a": "redis-cli -h cache1 -a {p} info",
    "docker-login": "docker login -u ops -p {p} registry.northwind.test",
    "netrc": "machine api.northwind.test login ops password {p}\n",
    "netrc-lines": "machine api.northwind.test\n  login ops\n  password {p}\n",
    "pgpass": "db1.northwind.test:5432:shop:ops:{q}\n",
    "npmrc": "//registry.northwind.test/:_authToken={t}\n",
    "npmrc-auth": "//registry.northwind.test/:_auth={b}\n",
    "docker-config": '{{"auths": {{"registry.northwind.test": {{"auth": "{b}"}}}}}}',
    "jdbc": "jdbc:postgresql://db1:5432/shop?user=ops&password={q}&ssl=true",
    "jdbc-sqlserver": "jdbc:sqlserver://db1:1433;databaseName=shop;user=ops;password={q};",
    "ado": "Data Source=db1;Initial Catalog=shop;User ID=ops;Password={q};Pooling=true",
    "redis-url": "CELERY_BROKER=redis://:{q}@cache1:6379/2",
    "amqp-url": "amqps://ops:{q}@mq1:5671/shop",
    "https-url": "git clone https://ops:{q}@git.northwind.test/shop.git",
    "https-token-url": "git remote add origin https://{t}@git.northwind.test/shop.git",
    "go-dsn": 'dsn := "ops:{q}@tcp(db1:3306)/shop?parseTime=true"',
    "bearer": "Authorization: Bearer {t}\r\nAccept: */*",
    "bearer-json": '{{"headers": {{"Authorization": "Bearer {t}"}}}}',
    "bearer-js": "headers: {{ authorization: `Bearer {t}` }}",
    "proxy-basic": "Proxy-Authorization: Basic {b}",
    "token-auth": "Authorization: token {t}",
    "set-cookie": "Set-Cookie: sid={t}; Path=/; HttpOnly; Secure",
    "cookie": "cookie: lang=en; _shop_session={t}; theme=dark",
    "curl-cookie": "curl -b 'session={t}' https://shop.northwind.test/",
    "sas": "https://blob.northwind.test/a.zip?sv=2025-01-01&se=2026-01-01&sig={u}",
    "webhook": "https://chat.northwind.test/hooks/{t}",
    "jwt": "got ey" + "JhbGciOiJFUzI1NiJ9.ey" + "J{t}.{t} from sso",
    "unnamed-token": "I used zed" + "_prod_{t} yesterday",
    "rails": "production:\n  secret_key_base: {h}\n",
    "django": "SECRET_KEY = 'django-insecure-{t}'\n",
    "k8s": "kind: Secret\ndata:\n  password: {b}\n",
    "ssh-pass-en": "ssh ops@10.1.2.3 (password: {p})",
    "htpasswd": "pgcli --password {p} shop",
    "pem": "-----BEGIN EC " + "PRIVATE KEY-----\n{m}\n-----END EC " + "PRIVATE KEY-----\n",
    "pem-escaped": '"key": "-----BEGIN ' + 'PRIVATE KEY-----\\n{m}\\n-----END ' + 'PRIVATE KEY-----\\n"',
}


def second_corpus(seed=7, rounds=3):
    """[(container, text, secret), ...]"""
    rng, rows = random.Random(seed), []
    for _ in range(rounds):
        for label, shape in CONTAINERS.items():
            for name, issue in rng.sample(sorted(ISSUED.items()), 4):
                value = issue(rng)
                rows.append((label, shape.format(n=name, v=value), value))
            for name in rng.sample(CHOSEN, 3):
                value = chosen_password(rng)
                if label in ("query", "form", "connection"):
                    value = value.translate({ord(c): "x" for c in "&%+#;"})
                rows.append((label, shape.format(n=name, v=value), value))
        for shape in PASSWORD_PROSE:
            value = chosen_password(rng)
            rows.append(("prose", shape.format(v=value), value))
        for label, shape in WHOLE.items():
            values = {"p": chosen_password(rng), "q": made(rng, LOWER + DIGITS, 11), "t": made(rng, UPPER + LOWER + DIGITS, 32),
                      "b": made(rng, UPPER + LOWER + DIGITS, 38) + "==", "u": made(rng, UPPER + LOWER + DIGITS, 40) + "%3D",
                      "h": made(rng, HEX, 128), "m": made(rng, UPPER + LOWER + DIGITS + "+/", 64)}
            used = [v for k, v in values.items() if "{%s}" % k in shape]
            rows += [(label, shape.format(**values), value) for value in used]
    return rows
