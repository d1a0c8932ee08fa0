// What an application does with @clickhouse/client. Prints one JSON object: what came of each step.
// Arguments: the URL, the writer's password, a table's name.
import { createClient } from '@clickhouse/client'

const [url, password, table] = process.argv.slice(2)
const reader = createClient({ url, database: 'otel' })
const writer = createClient({
  url, database: 'otel', username: 'writer', password, compression: { request: true, response: true },
})
const found = {}

const failure = async (step) => {
  try {
    await step()
    return 'nothing'
  } catch (error) {
    return error.code ?? error.name ?? String(error)
  }
}

found.ping = (await reader.ping()).success
await writer.command({ query: `CREATE TABLE ${table} (k UInt32, v String) ENGINE = MergeTree ORDER BY k` })
await writer.insert({ table, values: [{ k: 1, v: 'one' }, { k: 2, v: "zwei \t\n'" }], format: 'JSONEachRow' })
await writer.insert({ table, values: [[3, 'three']], format: 'JSONCompactEachRow', columns: ['k', 'v'] })

const chosen = await reader.query({
  query: `SELECT k, v FROM ${table} WHERE k > {low: UInt32} AND v != {not: String} ORDER BY k`,
  query_params: { low: 1, not: 'it\'s "odd" \\ \t' },
  format: 'JSONEachRow',
})
found.rows = await chosen.json()
found.queryIdLength = chosen.query_id.length
found.whole = (await (await writer.query({ query: `SELECT count() AS n FROM ${table}`, format: 'JSON' })).json()).data
found.empty = await (await reader.query({ query: `SELECT k FROM ${table} WHERE 0`, format: 'JSON' })).json()

const stream = (await writer.query({ query: 'SELECT number FROM numbers(1000000)', format: 'CSV' })).stream()
found.streamed = 0
for await (const rows of stream) found.streamed += rows.length

found.midStream = await failure(async () => {
  const query = 'SELECT number, throwIf(number = 3000000) FROM numbers(4000000)'
  for await (const rows of (await reader.query({ query, format: 'JSONEachRow' })).stream()) rows.length
})
found.error = await failure(() => reader.query({ query: 'SELECT * FROM not_there' }))
found.readonly = await failure(() => reader.command({ query: `DROP TABLE ${table}` }))
found.wrongPassword = await failure(() => createClient({ url, username: 'writer', password: 'x' }).query({ query: 'SELECT 1' }))
found.multi = await failure(() => reader.query({ query: 'SELECT 1; SELECT 2' }))

const controller = new AbortController()
const endless = 'SELECT count() FROM numbers(1000000000000)'
const aborted = failure(() =>
  reader.query({ query: endless, query_id: `${table}-aborted`, abort_signal: controller.signal }))
setTimeout(() => controller.abort(), 200)
await aborted

const killed = failure(() => reader.query({ query: endless, query_id: `${table}-killed` }))
let status = []
while (status.length === 0) {
  const kill = await reader.query({ query: `KILL QUERY WHERE query_id = '${table}-killed'`, format: 'JSONEachRow' })
  status = await kill.json()
}
found.killed = await killed

const exported = await reader.exec({ query: `SELECT k, v FROM ${table} ORDER BY k FORMAT TabSeparated` })
found.exported = ''
for await (const chunk of exported.stream) found.exported += chunk
await writer.command({ query: `DROP TABLE ${table}` })
await Promise.all([reader.close(), writer.close()])
console.log(JSON.stringify(found))
